// Package disk opens folders without following symbolic links, writes files that survive a power cut, and
// classifies the errors of a volume's file system.
//
// [Dir] and [Descent] take one name at a time, relative to an open folder: neither a tree's content nor a folder that
// is swapped for a link can lead them elsewhere. [Replace] replaces a file in one step and waits until it is on disk;
// [Flush] waits for a whole folder. [Error] turns an error of the file system into a retryable one of
// [events.ClassVolume] that says what to do; it leaves errors alone that have a class.
package disk
