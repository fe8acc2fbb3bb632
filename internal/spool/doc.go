// Package spool is an ordered queue of items on the local disk, for use while their destination is unreachable.
//
//	s, err := spool.Open("spool", spool.Config{})   // opens a file of this process in the directory
//	err = s.Append(ctx, item)                       // durable when it returns nil
//	items, err := s.Peek(100)                       // the oldest items
//	err = s.Drop(items...)                          // removes them
//
// Processes may share a directory. Each has its own file, a bbolt database that it keeps locked, and uses the first file
// that is not locked. [Spool.Adopt] takes over the files of dead processes: they are drained first, and deleted when
// they are empty. So each item is returned until some process has dropped it.
//
// # Failures
//
//	failure                                  effect
//	killed, or power loss, after Append      the item is kept
//	killed before Append returned            the item may or may not be kept
//	killed between use and Drop              the item is returned again; the user must detect duplicates
//	disk full, or a limit of Config          Append fails; everything else works
//	a file is damaged                        it is renamed, logged as an error, and replaced by a new one
//	the disk hangs                           Append returns when its context is done; the item may still be kept
//
// Concurrent appends share one write. Items of one process are returned in the order in which their appends returned;
// there is no order between processes. The directory must be on a local file system, because locks on network file
// systems are unreliable.
package spool
