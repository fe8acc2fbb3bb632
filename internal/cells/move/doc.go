// Package move moves repositories between cells.
//
//	queue := move.NewQueue(client, target.Prefix)
//	_, err := queue.Request(ctx, move.Request{Repo: repo, From: "eu-1"}, true)   // from any process
//
//	mover, err := move.New(move.Config{Cell: "eu-2", Directory: directory, …})   // in a worker of the new cell
//	err = mover.Run(ctx)
//
//	retirer := move.Retirer{…}   // in a worker of the old cell
//	retirer.Run(ctx)
//
// # Protocol
//
// Two cells are in two slots, which share no script. So each step concerns one cell, is repeatable, and is
// fenced by that cell's lease. The request is kept in the new cell until the last step, and any worker of
// that cell continues it.
//
//	staged     under the new cell's lease: the repository is marked as arriving, so that nothing works on it
//	           there, and what is published is copied from the old cell's reader
//	leased     both leases are held, taken in the order of the cells' names
//	copied     what has changed since is copied
//	floored    the new volume's fence is at least that of the old lease
//	marked     in the old cell, under its lease: the repository is marked as moved, and its polls end. This is the
//	           commit point: before it the repository is in the old cell, after it in the new one. If the old cell
//	           has replicas, one has the mark
//	flipped    the directory places the repository in the new cell
//	watched    the new cell has the watches
//	requested  what was not copied is requested from the repository's remote, by changes in the new cell
//	activated  the new cell has the state, and works on it
//	done       the request is removed
//
// Until it is activated, changes of the repository wait in both cells: handlers find a mark under the lease,
// and give them back. Then those in the old cell are forwarded. A [Retirer] of the old cell cleans up:
//
//	released   nobody needs the old watches any more: apps have got all results of the old cell. The watches and
//	           the state, but for the mark, are removed
//	removed    twice the grace of trees later, the old names, trees and objects are removed. Pinned trees stay
//	           until they are closed
//
// # What is carried over
//
// Published trees of all refs, with the history that is kept of them; watches; what each app has received, of
// refs and of views; which credentials the remote refuses; checks; records of renames. Not the remote's
// answers, announcements and the tombstone, because they name entries of the old cell's stream, and not
// failures. Notifications that wait stay in the old cell, which goes on posting them; the new cell posts its
// own after them. The forge is not asked.
//
// Git does not carry files from Git LFS, of submodules, and trees of views. A repository with any of them is
// not copied, but synced from its remote as soon as it is activated. Until then the new cell has no tree of
// it; the old names are still there.
//
// # Failures
//
//	a process dies                      another worker of the new cell continues, once its leases have ended
//	before the mark, with an error      the repository stays in the old cell; the request is tried again, with backoff
//	refused for good                    as before, but the copy is removed, and the request is tried again every hour
//	not wanted any more: the weights    before the mark, the copy is removed and the request dropped
//	changed, or the old cell was lost
//	after the mark                      the move can only be completed; until then changes of the repository wait
//	the request is lost (Redis failed   the Retirer of the old cell finds the mark and requests the move again
//	over to a replica without it)
//	the old cell has no reader          retried; the error says so
package move
