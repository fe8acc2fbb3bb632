// Package move moves repositories between cells.
//
//	mover := move.Mover{Directory: directory, Redis: client, …}   // in any process
//	err := mover.Move(ctx, repo, "eu-1", "eu-2", true)
//
//	retirer := move.Retirer{Mover: &mover, Cell: "eu-1", …}       // in a worker of the old cell
//	retirer.Run(ctx)
//
// # Protocol
//
// A move is a rename to another cell: what Redis knows of the repository goes there, the files are fetched
// again. Two cells are in two slots, which share no script. So each step concerns one cell, under the
// repository's lease there, and is repeatable.
//
//	marked     in the old cell: the repository is marked as moved, and its polls end. This is the commit point:
//	           before it the repository is in the old cell, after it in the new one. If the old cell has replicas,
//	           one has the mark
//	activated  in the new cell: it has the watches and the state
//	flipped    the directory places the repository in the new cell
//	requested  in the new cell: its refs are requested from the repository's remote
//	done       the old cell cleans up
//
// From the mark on, the repository is in the set [events.Namespace.Departing] of the old cell. If the process that
// moves it dies, a [Retirer] of the old cell takes the steps again.
//
// The mark freezes the old cell's state and watches: handlers read it under the lease before they work, settling
// needs the fence of a lease that is still held, and watches of a repository that is marked cannot be
// changed. So whoever activates reads the same, as often as it is tried. The steps after the mark are taken under the
// lease of the new cell. Nobody waits for a lease of the old cell meanwhile.
//
// An attempt that was overtaken does no harm: the states name the other cell and the move's epoch, and each script, also
// that of the watches, changes a repository only if it is there by that move, or knows of no later one.
//
// Until the directory places it in the new cell, changes of the repository wait in the old one: handlers find the mark
// under the lease, and give them back. Then they are forwarded. The [Retirer] cleans up:
//
//	released   the new cell has published the repository, and apps have got all notifications of the old one. The
//	           watches and the state, but for the mark, are removed
//	removed    twice the grace of trees later, the old names, trees and objects are removed. Pinned trees stay
//	           until they are closed
//
// Until the new cell has published every watched ref that apps were given or, after ten minutes, any of them, readers
// have the old cell serve the repository: see [state.Repo.IsUnfetched]. Who may read it is decided in the new one. It
// cannot be moved on meanwhile, nor back before it is removed.
//
// # What is carried over
//
// Watches; what each app has received, of refs and of views; which credentials the remote refuses; checks;
// records of renames. Not the remote's answers, announcements and the tombstone, because they name entries of
// the old cell's stream, and not failures. Notifications that wait stay in the old cell, which goes on posting
// them. Fences go on growing.
//
// # What is lost
//
// The order of results and notifications of the two cells: only fences and commits tell it. Each ref of a moved
// repository is fetched once. If it has changed meanwhile, the next result lists the whole tree, unless the
// depth covers the commit before. A ref that no watch selects is fetched if it is known by which
// credential; otherwise it waits for its next change.
//
// # Failures
//
//	a process dies                      a worker of the old cell continues, once its lease has ended
//	before the mark, with an error      the repository stays in the old cell; its worker tries again if the weights want it
//	not wanted any more: the weights    before the mark, cells.ErrChanged
//	changed, or the old cell was lost
//	after the mark                      the move can only be completed; until then changes of the repository wait
//	the new cell is gone                the move waits, with warnings, for a cell of that name
//	Redis has lost what a step wrote    the Retirer of the old cell finds the mark and completes the move again
//	the remote does not answer          the repository is in the new cell; readers of the old one serve what they
//	                                    have, and keep it, until the new one has fetched it
//	the old cell is lost before that    the new cell serves what it has
//	renamed before it is fetched        its next results have no commit before
package move
