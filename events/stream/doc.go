// Package stream is a Watermill Pub/Sub for Redis Streams. Its Subscriber handles many messages at a time,
// redelivers each after a delay until it is finished, hands out one message per key at a time, and can finish
// a message in the same atomic step that publishes its outputs. With packages locking and router, across
// processes:
//
//	package main
//
//	import (
//		"context"
//
//		"github.com/ThreeDotsLabs/watermill/message"
//		"github.com/redis/go-redis/v9"
//
//		"lockstep/events/stream"
//		"lockstep/router"
//	)
//
//	func main() {
//		worker := router.Worker{
//			Client: redis.NewClient(&redis.Options{}), Prefix: "shop:{0}:", Group: "indexer",
//			Key:      func(msg *message.Message) string { return msg.Metadata.Get("item") },
//			Handlers: map[string]message.HandlerFunc{"shop:{0}:orders": index},
//		}
//		_ = worker.Run(context.Background())
//	}
//
//	func index(msg *message.Message) ([]*message.Message, error) {
//		indexed := stream.Output{Stream: "shop:{0}:indexed", Message: message.NewMessage("indexed-"+msg.UUID, msg.Payload)}
//		return router.Commit(msg, stream.Settlement{Outputs: []stream.Output{indexed}})
//	}
//
// A program for watermill-redisstream runs after changing its import: the constructors, the fields of the
// configurations, the wire format and fan-out without a consumer group are the same. It then has many
// messages in flight, unless Window is 1, and a nacked message waits in Redis instead of blocking those
// behind it. The Publisher and the Subscriber do not close the client. Plain fields, as XADD writes them from
// any language, are accepted too.
//
// # Guarantees
//
// Every entry is delivered at least once and settled at most once, even if consumers die at any moment. One
// script writes its outputs, its state and its acknowledgement, after checking that this consumer still owns
// the entry, which XACK does not check, and that the lease of the [Guard], if any, is held.
//
// An entry that cannot be decoded, or for which Key or Beside panics, or whose key has NUL, becomes a dead
// letter. The handler decides when to give up, with [Delivery.DeadLetter].
//
// An attempt counts when the handler failed, which is when the message is nacked. A deferred delivery does not count, see
// [MetadataUncounted], nor does one that lapses: if its handler had called [Delivery.Begin], it counts as a death.
//
// A consumer reads in batches that double while more is due or new, up to its window. It takes no more
// entries than its Room allows, and leaves the rest to other consumers. It reads no more while its messages
// in flight have as many bytes as Bytes allows, and at most 8 MiB at a time; the last entries of a read may
// exceed either. A read that Redis runs so late that the consumer may have given up takes nothing: it has a
// deadline by Redis' clock.
//
// A consumer exists in the group from Subscribe to Close. Its reads are also heartbeats, every 2 s at least,
// even if nothing arrives: [GroupStatistics] counts the live ones. Dead ones are removed after ten times the
// visibility.
//
// One message per Key is in flight in a process, and those that need not wait for it: see Beside. The others
// are parked in an index by key. New entries of the key are parked behind them, and the oldest is unparked
// when the message is finished. A handler can read the parked entries of its key and settle them together
// with its own: [Delivery.Siblings]. [Delivery.Defer] changes when siblings are redelivered.
//
// A [Reader] reads entries without a group, from a position that its caller keeps. Callers in a process that wait
// for the same entries share a blocking read.
//
// # States of an entry
//
// Every entry that the group has read has a due time, at which it is redelivered unless it is finished. Due
// times are in Redis and use its clock, so they survive every process, and a delay costs neither a goroutine
// nor a place in the window.
//
//	read       due = now + visibility      MaxIdleTime; set by the script that reads it
//	heartbeat  due = now + visibility      every quarter of the visibility, while a handler works
//	nacked     due = now + delay           parked: pending under the name "(parked)", owned by no consumer
//	lapsed     the due time has passed     no heartbeat: its consumer died, hung or was cut off
//	finished   removed                     by the script that acknowledges the entry
//
// # Failures
//
//	a consumer dies              its entries lapse and go to others, within visibility + 100 ms
//	a consumer hangs or is cut   the same; when it resumes, its contexts are cancelled with cause ErrNotOwner, and it
//	off                          cannot finish these entries
//	Redis is down                handlers continue; idempotent scripts are retried; one log line when it goes, one
//	                             when it is back. After an outage longer than visibility/2, lapsed entries are
//	                             left alone for another visibility/2, so that live consumers can send heartbeats
//	Redis hangs                  the same; reads that it runs after their deadline take nothing
//	a reply is lost              the retry of a settlement finds it settled; entries of a lost read lapse
//	Redis lost the group         the group is re-created where it starts, by default at the first entry, with a warning;
//	                             settling an entry that was in flight returns ErrNotOwner
//	a group is deleted           a live consumer re-creates it, and calls Vanished; without one, its keys stay until
//	                             somebody deletes them, see SubscriberConfig.Prefix
//	a pending entry is trimmed   its delivery continues and can be settled; otherwise it is not redelivered, and
//	                             Vanished is called
//	unread ones are trimmed      Vanished is called, with Redis 7.0 or newer
//	the due index is lost        a sweep every 30 s gives pending entries a new due time; live consumers keep
//	                             theirs. Every eighth sweep inspects all entries, in case the index has due times
//	                             of entries that are gone
//	a consumer never leaves      its name stays in the group for a week or, if it is of UniqueConsumer, until another
//	                             one of these starts on its host; the sweep removes it then
//	a group stops reading        the Trimmer keeps its entries up to its cap, then counts and logs what it drops
//	a read times out             the next read is of one entry, then of twice as many each time
//	Subscribe's ctx ends         the messages' contexts end with it, unacked messages are returned uncounted, and the
//	                             channel is closed, at once
//	the process stops            Close: reading ends, handlers have the grace period, and the rest is given back
//	                             uncounted and delivered elsewhere within 100 ms
//
// What Redis itself may lose (a second or two without appendfsync always, acknowledged writes in a failover)
// is lost here too.
//
// # Limits
//
// It does not keep the order of entries that are nacked or lapse. It does not run handlers exactly once: an
// entry may be redelivered while its previous handler still runs, but only one of them can settle it. One
// message per key at a time holds for a process only; across processes, use package locking.
package stream
