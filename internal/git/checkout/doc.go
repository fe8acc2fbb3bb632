// Package checkout builds the tree of a commit on disk.
//
// [NewPlan] compares a commit with the last published tree, checks every new name and makes sure that every new object is
// present. [Plan.Build] then writes the tree into an empty folder, linking unchanged files from the last tree;
// [Plan.Patch] turns a retired tree of another commit into it. [GitDir] is the tree's small .git, with the index, by
// which Git and later plans read the tree. [Plan.ChangesSince] lists the files that a push changed.
//
// A file is never written to once it is made: trees share it.
//
// # Failures
//
//	"..", ".git" and the like in a tree       permanent, ClassHostile
//	a path longer than file systems take      permanent, ClassHostile
//	a link out of the tree, by [LinksRefuse]  permanent, ClassHostile
//	a tree above Limits                       permanent, ClassQuota
//	an object missing or damaged              retryable, ClassCorrupt
//	a ref that names no commit                permanent, ClassNoRef
//	a failing disk                            retryable, ClassVolume
package checkout
