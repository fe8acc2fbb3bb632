// Package tree opens the trees that Lockstep publishes, for programs that read them: the one that a
// name stands for now, or the one that a result names. It needs the volume alone, read-only if need be,
// and neither Redis nor a running Lockstep. It starts no goroutine.
//
// # What it promises
//
// A tree is one commit, whole, and never changes. An open [Tree] is pinned: it stays in its place, by
// path too, until it is closed or the process ends, however long ago it was replaced.
//
// # How a pin works
//
// A pin is a shared lock (flock) on the file .git/lockstep-pin of the tree. Whoever recycles a tree
// that was replaced first takes that lock exclusively, without waiting, and leaves the tree alone when
// it cannot. Since it may have been quicker, a reader that has the lock looks whether the file it
// locked is still the one in its place. If not, [Open] begins again with the name, and [OpenResult]
// returns [ErrGone]. A process that dies loses its pins with its open files.
//
// Locks reach as far as the file system carries them: docs/reading.md says how far on which. A tree
// built by a version of Lockstep that made no such file can be opened while a name links to it, without
// a pin: from when it is replaced, it stays for the grace and no longer. See [Tree.Pin].
//
// # Failures
//
//	what                                        error
//	nothing is published under the name         ErrNotPublished
//	the tree has been recycled                  ErrGone
//	a result whose tree is no tree's path       an error, and nothing outside the trees is opened
//	a result that names no tree                 an error: only synced results do
//	the volume cannot be read                   the file system's own error
package tree
