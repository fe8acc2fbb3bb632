// Package schedule looks for what no event tells: it has watched repositories polled when it is time, and
// compares registry, state and volume with each other.
//
// No webhook is complete, a failover may lose acknowledged writes, and a worker may die between two
// stores. What is lost so costs one interval, and not for ever.
//
// # Polls
//
// The registry keeps the moment of each repository's next poll. Any number of pollers ask it for those
// that are due: one script adds a due change for each and sets its next moment, so no repository is polled
// twice, none is forgotten when a poller dies, and nobody is the leader. The change goes the way of all
// changes: a worker asks the remote for its refs, under the lease, unless the repository is busy. When workers
// are so far behind that due changes would only wait, pollers wait too.
//
// # Reconciling
//
// One process at a time goes through all that is watched, known and on the volume:
//
//	found                                      done about it
//	a watch whose app was never given a tree   a due change: its sync is tried again, or fails for all to see
//	state and volume name different commits    likewise
//	state of a clone that is not there         likewise if it is watched, else reported
//	a clone that was watched, and is not       removed: its removal was lost
//	a clone that nobody ever watched           reported; it was asked for by hand. Removed if told to prune
//
// What is being worked on is passed over, and what has a watch that cannot be read. When nothing at all is watched, or many clones are not watched any more,
// more than ten and a tenth of what is, they are reported and stay unless told to prune: then it is more likely that the
// registry was lost, or is just being filled again.
package schedule
