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
// A move is a rename to another cell: what Redis knows of the repository goes there, the files are fetched
// again. Two cells are in two slots, which share no script. So each step concerns one cell, under the
// repository's lease there, and is repeatable. Nobody holds both leases. The request is kept in the new cell
// until the last step, and any worker of that cell continues it.
//
//	arriving   in the new cell: the repository is marked as arriving, so that nothing works on it there
//	marked     in the old cell: the repository is marked as moved, and its polls end. This is the commit point:
//	           before it the repository is in the old cell, after it in the new one. If the old cell has replicas,
//	           one has the mark
//	flipped    the directory places the repository in the new cell
//	requested  in the new cell: its refs are requested from the repository's remote, by changes that wait there
//	activated  in the new cell: it has the watches and the state, and works on the repository
//	done       the request is removed
//
// The mark freezes the old cell's state and watches: handlers read it under the lease before they work, settling
// needs the fence of a lease that is still held, and watches of a repository that is marked cannot be
// changed. So whoever activates reads the same, as often as it is tried, and needs the lease of the new cell only.
//
// An attempt that was overtaken does no harm: the mark of each cell names the other cell and the move's epoch,
// and each script, also that of the watches, changes a repository only if it is there by that move. A repository that was activated is
// not arriving any more, so it is activated once.
//
// Until it is activated, changes of the repository wait in both cells: handlers find a mark under the lease,
// and give them back. Then those in the old cell are forwarded. A [Retirer] of the old cell cleans up:
//
//	released   the new cell has published the repository, and apps have got all notifications of the old one. The
//	           watches and the state, but for the mark, are removed
//	removed    twice the grace of trees later, the old names, trees and objects are removed. Pinned trees stay
//	           until they are closed
//
// Until the new cell has published every watched ref that apps were given or, after ten minutes, any of them, readers
// have the old cell serve the repository: see [state.Repo.IsUnfetched]. Who may read it is decided in the new one. It
// cannot be moved on meanwhile.
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
//	a process dies                      another worker of the new cell continues, once its leases have ended
//	before the mark, with an error      the repository stays in the old cell; the request is tried again, with backoff
//	refused for good                    as before, but the request is tried again every hour
//	not wanted any more: the weights    before the mark, the request is dropped
//	changed, or the old cell was lost
//	after the mark                      the move can only be completed; until then changes of the repository wait
//	the request is lost (Redis failed   the Retirer of the old cell finds the mark and requests the move again
//	over to a replica without it)
//	the remote does not answer          the repository is in the new cell; readers of the old one serve what they
//	                                    have, and keep it, until the new one has fetched it
//	the old cell is lost before that    the new cell serves what it has
//	renamed before it is fetched        its next results have no commit before
package move
