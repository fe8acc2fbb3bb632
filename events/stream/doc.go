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
// It knows nothing of repositories; any keyed work can run on it. The wire format is that of
// watermill-redisstream, so any Watermill program can be at the other end. Plain fields, as XADD writes them from
// redis-cli or another language, are accepted too.
//
// # What it promises
//
// Every entry is delivered at least once and settled at most once, even if consumers die at any moment. Its outputs,
// its state and its acknowledgement are written by one script. The script first checks that this consumer still owns
// the entry, which XACK does not, and that the lease is held, if a [Guard] names one.
//
// An entry that cannot be decoded becomes a dead letter. A failed attempt is counted when it is nacked, a lapsed one
// when the entry is taken again; deferred deliveries are not counted, see [MetadataUncounted]. The handler decides
// when to give up, with [Delivery.DeadLetter].
//
// A consumer reads in batches that double while they are full, up to its window, and leaves to others what its Room
// does not allow for. At most KeyLimit messages with the same Key are in flight. The others are parked, in an index
// by key, and unparked when half of the limit is free. A handler can read the waiting entries of its key and settle
// them together with its own: [Delivery.Siblings].
//
// # The states of an entry
//
// Every entry that the group has read has a due time, a score in a sorted set: the time at which it is redelivered
// unless it is finished. It is stored in Redis and uses Redis' clock, so it survives every process, and a delay costs
// neither a goroutine nor a place in the window.
//
//	read       due = now + visibility      set by the script that reads it
//	heartbeat  due = now + visibility      every quarter of the visibility, while a handler works
//	nacked     due = now + delay           parked: pending under the name "(parked)", owned by no consumer
//	lapsed     the due time has passed     no heartbeat: its consumer died, hung or was cut off
//	finished   removed                     by the script that acknowledges the entry
//
// # When things fail
//
//	a consumer dies            its entries lapse and go to others, within visibility + 100 ms
//	a consumer hangs, is cut   the same; when it resumes, its contexts are cancelled with cause ErrNotOwner, and
//	off, or is stopped         it cannot finish these entries
//	Redis is away              handlers go on; idempotent scripts are retried; the log has one line when it goes and
//	                           one when it is back. After an outage longer than visibility/2, lapsed entries are
//	                           left alone for as long again, so that live consumers can send heartbeats
//	a reply is lost            of a settlement: the retry returns that it is settled. Of a read: the entries lapse,
//	                           which counts as an attempt
//	Redis lost its data, or    the group is recreated and reads the stream from its first entry, with a warning;
//	the group was deleted      settling an entry that was in flight returns ErrNotOwner
//	an entry is trimmed        its delivery goes on and can be settled; it is not redelivered
//	while it is pending
//	the due index is lost      a sweep every 30 s gives pending entries a new due time, without taking them from
//	                           live consumers
//	a consumer never leaves    the sweep removes its name when it has nothing pending and has been idle for ten
//	                           times the visibility
//	a group is never read      its entries are kept up to the Trimmer's cap; then the oldest are dropped, counted,
//	again                      and logged as errors
//	entries are so huge that   the next read is of one entry, then of twice as many each time
//	a read times out
//	the process is asked to    Close: reading stops, handlers may finish within the grace period, and the rest is
//	stop                       given back uncounted and delivered elsewhere within 100 ms
//
// What Redis itself may lose (a second or two without appendfsync always, acknowledged writes in a failover) is lost
// here too.
//
// # What it does not do
//
// It does not keep the order of entries that are nacked or lapse. It does not run handlers exactly once: an entry may
// be redelivered while its previous handler still runs, but only one of them can settle it. It does not serialise
// work on a key; use package locking for that.
package stream
