// Package router carries messages from a subscriber through locking and retrying to a handler.
//
// It is Watermill's router with Lockstep's middlewares around each handler, from the outside in:
//
//	trace      a span of each delivery, and of its steps, if the route has a tracer
//	dispose    the one place where an error becomes ack, redeliver-after, failed result or dead letter
//	recover    a panic is an error like any other
//	lock       one message at a time per key, over all processes; a timeout goes back to the stream
//	slots      bounds the work done at once; who waits for a lock takes none
//	handler    works, and ends in [Commit]
//
// Calls go down; only an error comes back up, and its [events.Disposition] says what it means.
//
// # What becomes of a message
//
//	handler's error             the message                                     counted as an attempt
//	none                        settled by Commit, in one atomic step            –
//	retryable                   comes back after an exponential, jittered delay  yes
//	the same, attempts used up  failed result, and a dead letter                 yes
//	none: process killed, hung  comes back when it lapses; dead letter after      yes
//	                            eight times the attempts
//	contention, a lost lease    comes back after a delay                         no
//	a newer version's type      comes back after a short delay, for others      no
//	any that would come back,   failed result, and a dead letter                 –
//	of a message past MaxAge
//	settled along by another    acked: there is nothing left to do               –
//	permanent                   failed result at once                            –
//	malformed                   dead letter                                      –
//	this process is stopping    goes back to the stream at once                  no
//
// Each middleware is plain Watermill and works over any Pub/Sub: where the subscriber is not
// Lockstep's own, a delay is only asked for (Watermill's delay metadata), results go out through the
// router's publisher, and settling is not atomic.
//
// # What is settled along
//
// A message that waits for its turn need not have one. While the lease is still held, [Changes] settles
// every waiting change that the outcome answers too, each with a result of its own, as the outcome's
// Covers says. [Results], if told what supersedes what, hands the newest of the waiting results of a key
// to its function and settles the others with it. Both want Lockstep's own subscriber, with their Key as
// its key; otherwise each message comes on its own turn.
//
// # What it does not do
//
// It knows nothing of Git. [Changes] adapts an [events.Handler] to it, and [Results] a function that
// follows what became of repositories; any other keyed work brings a key and a handler of its own.
package router
