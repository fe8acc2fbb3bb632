// Package watch is the registry of watches: which refs of which repository to keep up to date for which app.
//
// A [Watch] names the remote, the refs, the credential to fetch with and the URL to notify. Watches decide which
// changes a webhook leads to, which remotes are polled and which clones are kept. The registry stores credential
// names, never secrets.
//
// Options of an optional part of a sync belong to its package below internal/ext, which registers their fields and flags:
// see [Register]. A program that reads watches must import these packages: a watch with a field that none has registered
// cannot be decoded.
//
// # Keys in Redis
//
// All keys share the namespace's hash tag, so one script can change them atomically, on Redis Cluster too.
//
//	watch:of:{repository}  hash: one field "{app} {refs}" for each watch, as JSON; plus version, repo (the path
//	                       as first spelled), at (the key of its remote), interval (ms: the shortest interval of
//	                       any watch, 0 for none), usual ("1" if a watch uses the default interval), asked (ms:
//	                       when a poll was last requested), polled (ID of its entry), every (ms: the interval by
//	                       which the next one is scheduled)
//	watch:at:{remote}      hash: the repositories with that remote, and version. A repository contains a slash
//	watch:index            sorted set of watched repositories, all with score 0: an ordered list, read by page
//	poll                   sorted set: repository to the time (ms) of its next poll
//	deliveries:{change}    hash: the entry of a change of a delivery; expires a minute after the change has settled
//	                       well, and goes when it fails
//
// # Paths and remotes
//
// An app chooses the path on the volume where a repository is kept, and several apps may keep the same remote at
// different paths. A forge does not know these paths: its webhooks name the remote. So watches are stored by path and
// indexed by [RemoteKey], the remote's host and path in normalized form. Matches are then compared exactly by
// [SameRemote]. All watches of a path name the same remote, so a path belongs to one remote key.
//
// # Versions
//
// All watches of a repository share a version, and so do all watches of a remote. A version is a random text,
// replaced by every write. Versions are never reused, not even after Redis has lost its last writes. They serve two
// purposes:
//
//   - Optimistic concurrency. A writer reads the watches of a path and computes the new ones. write.lua stores them
//     only if the version is unchanged; otherwise the writer starts over.
//   - Caching. A receiver may cache the watches of a remote. accept.lua accepts its changes only if the cached version
//     is current in the same step. So a delivery costs one round trip, never creates a change for an app that has
//     stopped watching, and never misses an app that has started, at any path. Of keeps large sets, and reads only
//     the version of these again.
//
// # Why scripts
//
// Between reading the watches and queueing a change, watches may be added or removed. Each script does both
// in one step, and the position of its entry in the stream of changes records the order. It runs every check
// that can fail before its first write.
//
//	write.lua   changes a repository's watches and the index of its remote, and queues syncs, a poll or, after the
//	            last watch is removed, a forced removal of the clone
//	accept.lua  accepts all changes of a delivery if its ID is new and the versions are current, else none
//	due.lua     queues a poll for each repository that is due and schedules its next one, by Redis' clock, so
//	            schedulers need no leader
//
// Many workers read the stream, out of order. So a worker checks the registry again under the repository's lease: a
// removal keeps a clone that is watched again, and a change for a removed watch fails.
//
// # Failures
//
//	Redis does not answer              an error; all or nothing was written, and it is safe to retry
//	concurrent writes of a set         one wins, the others start over
//	a set changes under a receiver     Stale: nothing was accepted; read the watches again and recompute the changes
//	Redis loses its last writes        watches and the changes queued with them may be lost: import the file again
//	no scheduler runs for a while      every overdue repository is polled once, not once for each missed poll
//	a watch cannot be decoded          Of, ByRemote, List and Put fail and name it, because ignoring it could remove
//	                                   a clone. Remove and a new Put still work, and Repos includes it
//	two remotes at one path            refused by Put, Add, Plan and Move, as by the volume. So are a path inside
//	                                   another watched path, and the 1,001st watch of a repository
package watch
