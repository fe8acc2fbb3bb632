// Package events holds the words that Lockstep's parts speak to each other in: repository paths,
// refs, changes asked for, results reported, and what an error means for the event it befell.
//
// # What it promises
//
// Everything here is parsed once, at the edge, and proven by its type afterwards. A [RepoPath] or a
// [Ref] in hand is safe as a folder name and as part of a Redis key; a [Change] from [ParseChange]
// has a remote URL without credentials in it. The package depends on the standard library alone and
// does no I/O, so any program may import it to publish changes or to read results.
//
// # On the wire
//
// A change or a result is a CloudEvents 1.0 document in structured JSON mode; its type ends in a
// version ("lockstep.change.pushed.v1"). A new field is added within a version and ignored by older
// readers; a changed meaning gets a new version, and a version that is not known here is left to a newer
// program ([ClassNewer]), never guessed at. Changes are accepted in a second form too, a flat set of fields
// (repo, url, ref, …), so that redis-cli or three lines of any language can publish one.
//
// # What it does not do
//
// It does not say how events travel (package stream), who may work on a repository at a time
// (package locking), or what is done to it (package handlers).
package events
