// Package cells divides repositories among cells. A cell is one deployment: the keys of one hash tag, one
// volume, its workers. The directory lists the cells, and places each repository in one of them.
//
//	directory, err := cells.Open(ctx, client)
//	cell := directory.Place(repo)              // where the repository is
//	target := directory.Target(repo)           // where it shall be: differs while cells are added and drained
//	err := directory.Override(ctx, repo, cell.Name, target.Name, false)
//	err = directory.Settle(ctx, epoch)      // none is left to move
//
// # Placement
//
// Weighted rendezvous hashing of [events.RepoPath.Key]: each cell gets a share of the repositories in
// proportion to its weight, and a change of weights moves only what it has to. An override places one
// repository elsewhere: it was moved before the weights changed, or is pinned. Placement is computed in
// memory, from a copy of the directory that [Directory.Run] keeps up to date.
//
// # Change of weights
//
// Each cell has two weights: Placed, by which repositories are placed, and Weight, by which they shall be.
// [Directory.Add] and [Directory.Drain] change only Weight, so they place nothing elsewhere. Each repository
// for which they differ is moved, which ends with an override ([Directory.Override]). When none is left,
// [Directory.Settle] sets Placed to Weight and deletes the overrides that are not needed any more.
// [Directory.Lose] is for a cell that is lost: its repositories are placed elsewhere at once.
//
// # Epochs
//
// Each change of the directory has the next epoch and an entry of that ID in its log, so that a copy is
// brought up to date by reading what follows its epoch, and wholly if the log no longer has it. Of two copies
// the one with the greater epoch is newer.
//
// A copy may be out of date, so it never decides who owns a repository. A cell does, under the lease.
//
// # Keys
//
// All have the prefix of the directory, [DefaultPrefix]:
//
//	cells          hash: name of a cell → Cell as JSON
//	cells:epoch    string: number of the last change
//	cells:placed   hash: key of a repository → override, "{cell}" or "{cell} pinned"
//	cells:log      stream: the last 10,000 changes; {epoch}-0 → cells, or lines of places
//
// # Failures
//
//	no directory             ErrNoCells from Open: no cell has been added
//	Redis does not answer    Refresh returns the error; the copy stays as it is
//	a concurrent change      the edit is computed again, or refused with ErrChanged if the caller relies on an epoch
package cells
