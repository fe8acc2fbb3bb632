// Package stream carries messages over Redis Streams: a Watermill Publisher, and a Watermill Subscriber
// that works on many messages at a time, loses none, and can finish one together with what came of it.
// It knows nothing of repositories; any keyed work can run on it. The wire format is that of
// watermill-redisstream, so that any Watermill program may be at the other end, and plain XADD fields
// from redis-cli or another language are read too.
//
// # What it promises
//
// Every entry that the group has read has a due moment, a score in a sorted set: the moment at which it
// is delivered again unless it is finished. That one number stands for everything that can happen.
//
//	read        due = now + visibility      in the script that reads it
//	heartbeat   due = now + visibility      every quarter of it, while a handler works
//	nack        due = now + delay
//	crash       nobody pushes it on, and it lapses
//	finished    it is removed, in the script that acknowledges the entry
//
// It is in Redis and by Redis' clock, so it outlives every process, and a delay costs neither a
// goroutine nor a place in the window.
//
// Whoever finishes an entry is asked first whether it is still theirs: XACK by itself takes anybody's
// word. [Delivery.Settle] asks for a lease too, if one is named, then adds the outputs, sets the state
// and acknowledges, all in one script: one output for each settled entry, whatever crashed on the way.
// An entry that waits for its due moment is pending under the name "(parked)", which is nobody's.
//
// An entry that cannot be read becomes a dead letter, and the loop goes on. Attempts are counted: a
// failed one when it is nacked, a lapse when it is taken up again; waiting for a turn is not counted
// (see [MetadataUncounted]). When to give up is for the handler to say, with [Delivery.DeadLetter].
//
// # Who gets what
//
// A consumer reads in batches that double while there is enough to read, up to its window, and stops
// where its Room does: what it could not work on soon is left to others. Of one Key it has no more than
// its Share in flight; the rest is parked on a shelf, by key, and recalled when half of the share is
// free. Whoever works on a key can read what waits for it, and settle it along: [Delivery.Siblings].
//
// # When things fail
//
//	a consumer dies            its entries lapse and go to others, within visibility + 100 ms
//	a consumer hangs, is cut   the same; when it is back its contexts end with ErrNotOwner as cause, and
//	off, or is stopped         what it tries to finish is refused
//	Redis is away              handlers go on; scripts that may run twice are tried again; one line in
//	                           the log when it goes and one when it is back. If that took longer than
//	                           visibility/2, lapsed entries are left alone for as long again, so that
//	                           their consumers can speak up
//	a reply is lost            of a settlement: it is asked again and answers that it is done. Of a read:
//	                           the entries lapse, which counts as an attempt
//	Redis lost its data, or    the group is made anew and reads the stream from its first entry, with a
//	the group was deleted      warning; what was in flight belongs to nobody, and settling it is
//	                           ErrNotOwner
//	an entry is trimmed away   its delivery goes on and can be settled; it is not delivered again
//	while it is pending
//	the due index is lost      a sweep every 30 s gives pending entries a new due moment, and takes
//	                           nothing from consumers that are alive
//	a consumer never leaves    the sweep removes its name when it has nothing pending and has not been
//	                           heard of for ten times the visibility
//	a group is never read      its entries are kept up to the Trimmer's cap; then the oldest go, counted, and
//	again                      with an error in the log
//	entries are so huge that   the next read is of one, and then of twice as many each time
//	a read takes too long
//	the process is told to     Close: reading stops, handlers may finish within the grace, the rest goes
//	stop                       back uncounted and is taken up elsewhere within 100 ms
//
// What Redis itself may lose (a second or two without appendfsync always, acknowledged writes in a
// failover) is lost here too.
//
// # What it does not do
//
// It does not keep order once something is nacked or lapses, and it does not make handlers run once: an
// entry may be delivered again while its former handler still runs. Only one of them can settle it. It
// does not serialise work on a key; that is what package locking is for.
//
// # Where to find it
//
//	config.go        what can be set           delivery.go   one entry in hand, nack
//	subscriber.go    Subscribe, Close          settle.go     settle, dead letter
//	subscription.go  the life of one consumer  flight.go     what is in hand at the moment
//	read.go          take and hand out         outage.go     Redis away and back
//	watch.go         wait for news             decode.go     fields to message and back
//	beat.go          heartbeat and sweep       scripts.go    calls of the *.lua scripts
//	finish.go        acks and nacks, batched   publisher.go, message.go
//	dead.go          list, retry, drop letters trim.go       what is kept of streams and letters
//	stats.go         lengths, lags, ages       await.go      follow a stream without a group
//	tracker.go       what became of one change
package stream
