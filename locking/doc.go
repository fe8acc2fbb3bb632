// Package locking gives one worker at a time the right to work on a key, over any number of
// processes that share a Redis. Waiters are served in order of arrival, a released lease is handed
// straight to the next of them, and every grant carries a fence: a number that only grows, by which
// whoever stores the work can refuse a holder that has been overtaken.
//
//	err := locker.Do(ctx, locking.Request{Key: "acme/widgets", Job: "42"},
//		func(ctx context.Context, lease *locking.Lease) error {
//			return refresh(ctx, lease.Fence())
//		})
//
// # Waiting
//
// A process has at most one place in the queue of a key, its ticket. Its own requests for that key
// line up behind the ticket in memory, each begins only when the one before has wholly returned, and
// each has a grant and a fence of its own. A process that others are waiting behind goes to the end
// of the queue after each grant, so processes take turns however many requests each of them has;
// a process that is alone passes the lease on to its next request in the same round trip that
// releases it. A stopped process costs the others one hand-over, not one for each of its requests.
//
// Release is one script: it chooses the next live waiter, makes it the owner for a short hand-over
// lease (0.7 s), and tells it by one message. Nobody else wakes. Messages can be lost, so a waiter
// also asks about once a second, and when the holder's lease would end if it is first in line.
//
// # The states of a lease
//
//	held      a renewal succeeded less than a lease ago, counted from before its call was made
//	in doubt  that moment has passed because Redis does not answer. Work may go on in private;
//	          nothing may be published: Confirm waits
//	lost      Redis answered that another has had it since, or that it was taken away. The lease's
//	          context is cancelled with cause ErrLost
//
// A lease in doubt becomes held again when Redis answers that nobody else has had it, even when it
// had run out meanwhile. It is renewed every quarter of its length, all leases of a process together.
//
// # The fence
//
// A grant's fence is the largest of the last fence plus one, Redis' clock in microseconds, and
// Request.Floor plus one. So it grows even when Redis has lost its data, as long as its clock has
// not gone back; and when it has, the caller's floor, the highest fence that its own storage has
// seen, still holds. The package cannot stop a process that was paused in mid-write: only the storage
// can, by comparing fences, or a script on the same Redis, by Lease.Guard.
//
// # Looking, and taking away
//
// An Inspector reads who holds a key and who waits, in order, and lists what is held. It can take a
// lease away: the caller names the fence it means, the holder is told and its context cancelled, and
// after a delay the first waiter gets the lease. It needs no Locker. Several keys at once, as a move
// from one to another needs, are AcquireAll's: everybody takes them in the order of their bytes.
//
// # What happens when
//
//	a holder is killed            its lease runs out; the next waiter has it within lease + 1 s
//	a holder is stopped, resumes  the next waiter has had it; at the next renewal the holder loses
//	                              it, and until then its fence is too low
//	a waiter is killed            nobody hears its message: passed over. On Cluster, where that
//	                              cannot be known, as if it were stopped
//	a waiter is stopped           its message is heard by a process that does nothing: one hand-over
//	                              lease, 0.7 s, once
//	a waiter gives up             it leaves the queue; a grant that crossed it is passed on
//	a message is lost             the waiter asks within 1.2 s, or as soon as it hears again
//	pub/sub does not work at all  a waiter gets a free or lapsed lease when it asks, but those who
//	                              can be reached go first
//	a reply is lost               every script may be repeated: the token is the request's id
//	Redis is away                 waits go on until their time is over, then ErrUnavailable;
//	                              leases go from held to in doubt, and back
//	Redis refuses writes          as away: a replica, a full disk or memory, too few replicas. Nobody
//	                              hears of a grant that is not recorded. Out of memory, leases can
//	                              still be released and handed over
//	Redis hangs, then goes on     what it read meanwhile still runs: a request that was given up may
//	                              be granted to nobody, and lapses
//	Redis is loading, or busy     as away
//	Redis restarts with its data  slowly or not, as away: the lease is held again, or lost if a waiter
//	                              was there first. The queue is kept for 10 s, then rebuilt as
//	                              waiters ask
//	Redis restarts empty          a holder takes its lease back with the same fence, unless a waiter
//	                              was there before it: then that one has a higher fence, and the
//	                              holder has lost
//	... twice, while in doubt     the holder may take it back below a fence it never saw: only
//	                              storage that compares fences knows
//	failover to a replica         acknowledged grants may be missing: as a restart with older data.
//	                              Two holders until the old one's next renewal, a quarter lease or a
//	                              reconnection later, told apart by their fences; for as long as the
//	                              old master is cut off but reachable, unless it has
//	                              min-replicas-to-write. Messages come again once resubscribed
//	Redis' clock goes forward     leases lapse early; holders that were overtaken lose theirs
//	Redis' clock goes back        a dead holder's lease lasts at most four leases; fences still grow
//	the worker's clock is wrong,  nothing: only its monotonic clock is used, and differences of
//	or jumps                      Redis' own
//	Release fails                 harmless: the lease lapses
//	a lease is taken away         the holder loses it at once, or, if the message is lost, at its next
//	                              renewal; meanwhile nobody else has it, for the lock delay
//	one of several is lost        the work under all of them is cancelled
//
// Lockers that share a Prefix should have the same Lease; a factor of four is tolerated.
//
// # What it does not do
//
// It is not reentrant: a request for a key that the same goroutine holds waits for itself. It has
// no shared (read) leases, and spans no several Redis masters.
package locking
