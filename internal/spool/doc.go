// Package spool keeps items on this machine's disk, in order, while what they are meant for is away.
//
//	s, err := spool.Open("spool", spool.Config{})   // a file of this process's own in the folder
//	err = s.Append(ctx, item)                       // on disk when it returns nil
//	items, err := s.Peek(100)                       // the oldest
//	err = s.Drop(items...)                          // done with them
//
// Each process has a file of its own, a bbolt database that is locked for as long as the process lives,
// and takes the first that nobody has. [Spool.Adopt] takes over those that dead processes have left: they
// are drained first, and deleted when they are empty. So however many processes share a folder, and
// however they end, each item is given out until somebody has dropped it.
//
//	what                                     what becomes of it
//	killed, or without power, after Append   the item is there
//	killed before Append returned            the item may be there, or not
//	killed between its use and Drop          the item is given out again: who uses it has to notice
//	the disk is full, or Config says so      Append fails, and all goes on
//	a file is damaged                        it is moved aside, with an error in the log; a new one takes its place
//	the disk does not answer                 Append gives up with its context; the item may be kept all the same
//
// Appends that come together share one write. Items of one process are given out in the order in which
// their appends returned; there is no order between processes. A folder must be on a file system of this
// machine: flock over a network is not what it seems.
package spool
