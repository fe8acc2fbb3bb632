// Package disk opens folders without following symbolic links, writes files that survive a power cut, and
// classifies the errors of a volume's file system.
//
// [Dir] and [Walker] resolve one name at a time, relative to an open folder, so that neither the content of a
// tree nor a folder swapped for a link can redirect them. [Replace] replaces a file atomically and syncs it;
// [Flush] syncs new data, and never what others write. [Error] turns a file system error into a retryable
// error of [git.ClassVolume] with advice.
package disk
