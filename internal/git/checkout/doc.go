// Package checkout builds the tree of a commit on disk.
//
// [NewPlan] compares a commit with the last published tree, and checks the new names and that all new objects
// are present. [Plan.Build] writes the tree into an empty folder and links unchanged files from the last
// tree; [Plan.Update] applies the changes to a private copy of it instead. [GitDir] is the tree's small .git,
// whose index Git and later plans read. [Plan.ChangesSince] lists the files that a push changed.
//
// [Plan.Select] makes a plan of some of the files.
//
// [Plan.SetParts] adds the files of submodules to a plan. Without it they are empty folders.
//
// A file is never modified after it is created, because trees share it.
//
// # Failures
//
//	"..", ".git" and the like in a tree         permanent, ClassHostile
//	path too long for the file system           permanent, ClassHostile
//	link out of the tree, also through others,  permanent, ClassHostile
//	with [LinksRefuse]
//	tree above Limits                           permanent, ClassQuota
//	missing or damaged object                   retryable, ClassCorrupt
//	ref that does not name a commit             permanent, ClassNoRef
//	disk error                                  retryable, ClassVolume
package checkout
