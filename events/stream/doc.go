// Package stream carries messages over Redis Streams. It has a Watermill Publisher, and a Watermill Subscriber
// that handles many messages at a time, redelivers each until it is finished, and can finish a message in the same
// atomic step that publishes its outputs.
//
//	messages, err := subscriber.Subscribe(ctx, "shop:{0}:orders")
//	if err != nil {
//		return err
//	}
//	for msg := range messages {
//		delivery, _ := stream.DeliveryOf(msg)
//		indexed := stream.Output{Stream: "shop:{0}:indexed", Message: message.NewMessage("indexed-"+msg.UUID, msg.Payload)}
//		if err := delivery.Settle(msg.Context(), stream.Settlement{Outputs: []stream.Output{indexed}}); err != nil {
//			msg.Nack() // redelivered after a backoff
//			continue
//		}
//		msg.Ack()
//	}
//
// It does not depend on repositories; any keyed work can run on it. The wire format is that of watermill-redisstream, so any
// Watermill program can be at the other end. Plain fields, as XADD writes them from any language, are accepted too.
//
// # What it promises
//
// Every entry is delivered at least once and settled at most once, even if consumers die at any moment. One script writes
// its outputs, its state and its acknowledgement, after checking that this consumer still owns the entry, which XACK does
// not check, and that the lease of the [Guard], if any, is held.
//
// An entry that cannot be decoded becomes a dead letter. A failed attempt counts when it is nacked, a lapsed one when the
// entry is taken again; a deferred delivery does not count, see [MetadataUncounted]. The handler decides when to give up,
// with [Delivery.DeadLetter].
//
// A consumer reads in batches that double while they are full, up to its window, and leaves to others what its Room does
// not allow for. At most KeyLimit messages with the same Key are in flight. The others are parked in an index by key, and
// unparked when half of the limit is free. A handler can read the waiting entries of its key and settle them together with
// its own: [Delivery.Siblings].
//
// # The states of an entry
//
// Every entry that the group has read has a due time, at which it is redelivered unless it is finished. Due times are in
// Redis and use its clock, so they survive every process, and a delay costs neither a goroutine nor a place in the window.
//
//	read       due = now + visibility      set by the script that reads it
//	heartbeat  due = now + visibility      every quarter of the visibility, while a handler works
//	nacked     due = now + delay           parked: pending under the name "(parked)", owned by no consumer
//	lapsed     the due time has passed     no heartbeat: its consumer died, hung or was cut off
//	finished   removed                     by the script that acknowledges the entry
//
// # When things fail
//
//	a consumer dies              its entries lapse and go to others, within visibility + 100 ms
//	a consumer hangs or is cut   the same; when it resumes, its contexts are cancelled with cause ErrNotOwner, and it
//	off                          cannot finish these entries
//	Redis is away                handlers continue; idempotent scripts are retried; one log line when it goes, one when it
//	                             is back. After an outage longer than visibility/2, lapsed entries are left alone for as
//	                             long again, so that live consumers can send heartbeats
//	a reply is lost              the retry of a settlement finds it settled; entries of a lost read lapse
//	Redis lost the group         the group is re-created and reads the stream from its first entry, with a warning;
//	                             settling an entry that was in flight returns ErrNotOwner
//	a pending entry is trimmed   its delivery continues and can be settled; it is not redelivered
//	the due index is lost        a sweep every 30 s gives pending entries a new due time; live consumers keep theirs
//	a consumer never leaves      the sweep removes its name once it has nothing pending and has long been idle
//	a group stops reading        the Trimmer keeps its entries up to its cap, then counts and logs what it drops
//	a read times out on huge     the next read is of one entry, then of twice as many each time
//	entries
//	the process stops            Close: reading ends, handlers have the grace period, and the rest is given back uncounted
//	                             and delivered elsewhere within 100 ms
//
// What Redis itself may lose (a second or two without appendfsync always, acknowledged writes in a failover) is lost here
// too.
//
// # What it does not do
//
// It does not keep the order of entries that are nacked or lapse. It does not run handlers exactly once: an entry may be
// redelivered while its previous handler still runs, but only one of them can settle it. It does not run one message per
// key at a time; use package locking for that.
package stream
