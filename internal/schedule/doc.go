// Package schedule catches what events miss: it polls watched repositories and reconciles the registry, the
// state in Redis and the volume.
//
// # Polls
//
// One script queues a due change for each overdue repository and schedules its next poll, so any number of pollers may
// run without a leader. A worker lists the remote's refs under the lease, unless the repository is busy. Pollers pause
// while workers are far behind.
//
// # Reconciliation
//
// One process at a time checks all repositories that are watched, known or on the volume:
//
//	finding                                    repair
//	a watch whose app never received a tree    a due change: the sync is repeated, or its failure becomes visible
//	state and volume name different commits    a due change
//	state of a clone that does not exist       a due change if it is watched, else reported
//	a clone that is no longer watched          removed: its removal was lost
//	a clone that was never watched             reported, as it was requested by hand; removed with Prune
//
// Repositories that are busy, or whose watches cannot be decoded, are skipped. Clones that are no longer
// watched are only reported, unless Prune is set, if nothing is watched at all, or if they are more than ten
// and more than a tenth of the watched repositories: the registry was probably lost or is being filled again.
package schedule
