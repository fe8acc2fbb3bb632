// Package locking gives one worker at a time the right to work on a key, across any number of processes that share
// a Redis. Waiters are served in order of arrival, and every grant has a fence, a number that only grows.
//
//	client := redis.NewClient(&redis.Options{Addr: "redis:6379", MaxRetries: -1, ContextTimeoutEnabled: true})
//	locker, err := locking.New(locking.Config{Redis: client, Prefix: "{refresh}:"})
//	if err != nil {
//		return err
//	}
//	defer locker.Close(ctx)
//	return locker.Do(ctx, locking.Request{Key: "acme/widgets", Job: "42"},
//		func(ctx context.Context, lease *locking.Lease) error {
//			return refresh(ctx, lease.Fence()) // ctx is cancelled if the lease is lost
//		})
//
// # Guarantees
//
// At most one lease of a key is valid at a time by Redis' clock. Waiting is fair across processes, however
// many requests each of them has. The storage behind the lock can reject an overtaken holder by comparing
// fences.
//
// A process has at most one place in the queue of a key, its ticket. Its own requests for that key wait
// behind the ticket in memory. Each starts only when the previous one has released its lease, and gets its
// own grant and fence. After each grant, a process goes to the end of the queue if others wait; otherwise it
// passes the lease on to its next request in the round trip that releases it.
//
// Release is one script: it makes the first live waiter the owner for a short hand-over lease (0.7 s) and
// wakes only that waiter, by one message. Messages can be lost, so a waiter also polls about once a second,
// and the first waiter polls when the holder's lease would expire. Release removes dead waiters on its way.
// It looks at no more than 4,096 waiters, of which 1,024 may be without a subscription; if none of those can
// take the lease, it is free: the next request for the key continues after the dead ones, and gets it if no
// waiter can be reached.
//
// A lease that expires goes to the first waiter at once, if the process that asks has had steady contact with
// Redis: no gap longer than half a lease during the last half lease (5 s at most). Otherwise the fault may
// have been Redis', and living holders are about to renew: the process leaves expired leases alone until its
// contact has been steady that long. A call also carries a deadline by Redis' clock: if Redis runs it after
// the caller has given up, it changes nothing.
//
// A wait is logged at level debug, and after a second as a warning.
//
// A fence is the largest of the last fence plus one, Redis' clock in microseconds, and Request.Floor plus
// one. So it grows even after Redis has lost its data, as long as its clock has not gone back. If that may
// happen, pass as Floor the highest fence that your storage has recorded. The package cannot stop a process
// that is paused during a write: only the storage can, by comparing fences, or a script on the same Redis,
// see [Lease.Guard].
//
// The key of a lock may be deleted once its fence and its field expires, both times of Redis' clock, are ten
// leases old, at least a minute: later fences are higher, and a holder from before then does not reclaim the
// lease, which it has not renewed for so long. A script that checks the guard of a lease may delete its key.
//
// An [Inspector] shows who holds a key and who waits, lists held keys, and releases a lease by force.
// [Locker.AcquireAll] acquires several keys in byte order, so that calls cannot deadlock.
//
// # States of a lease
//
//	held      a renewal succeeded less than a lease ago, counted from before the call
//	in doubt  that time has passed because Redis does not answer. Private work may continue, but nothing may be
//	          published: Confirm waits
//	lost      another request has owned it since, or it was released by force. The lease's context is cancelled with
//	          cause ErrLost
//
// A lease in doubt is held again once Redis answers that no other request has owned it, even if it had
// expired. All leases of a process are renewed together, every quarter of their length.
//
// # Failures
//
//	a holder is killed            its lease expires; the next waiter gets it within lease + 1 s, or half a lease
//	                              (5 s at most) later if that process has just started or lost touch with Redis
//	a holder is paused            the next waiter gets the lease; the holder loses it at its next renewal, and until then
//	                              its fence is too low
//	a waiter is killed            its message has no subscriber, so it is skipped. Cluster cannot detect it: that
//	                              costs one hand-over lease, 0.7 s, once
//	a waiter is paused            its message has a subscriber that does nothing: one hand-over lease, once
//	a waiter gives up             it leaves the queue; a grant that arrives meanwhile is passed on
//	a message is lost             the waiter polls within 1.2 s, or when it has resubscribed
//	pub/sub does not work         a waiter gets a free or expired lease when it polls, after waiters that can be reached
//	a reply is lost               every script can be repeated: the token identifies the request
//	Redis is down, loading, busy  requests wait until their timeout, then fail with ErrUnavailable; leases go from held
//	                              to in doubt, and back
//	Redis refuses writes          as down; out of memory, leases can still be released and handed over
//	Redis hangs, then resumes     living holders renew, even if all leases have expired. Requests that have given up
//	                              meanwhile get nothing, except a free lease on a Locker's first call, which expires.
//	                              Waiters lose their places after 10 s and queue again
//	Redis restarts with its data  as down: the lease is held again, or lost if its holder reconnects after half a lease
//	                              (5 s at most) and a waiter was first. The queue is kept for 10 s, then
//	                              rebuilt as waiters poll
//	Redis restarts empty          a holder reclaims its lease with the same fence, unless it has not renewed that for ten
//	                              leases, at least a minute. If a waiter was first, it has a higher fence, and the holder
//	                              loses the lease
//	... twice, while in doubt     the holder may reclaim the lease below a fence it never saw: only storage that compares
//	                              fences can tell
//	failover to a replica         acknowledged grants may be missing, so two holders with different fences may exist for
//	                              a quarter lease; longer while the old master is cut off but reachable, unless it has
//	                              min-replicas-to-write
//	Redis' clock goes forward     leases expire early; overtaken holders lose theirs
//	Redis' clock jumps back       a dead holder's lease lasts at most four leases; fences still grow
//	the worker's clock is wrong   no effect: only its monotonic clock and differences of Redis' clock are used
//	Release fails                 harmless: the lease expires
//	a lease is released by force  the holder loses it at once or, if the message is lost, at its next renewal;
//	                              nobody else gets it during the lock delay
//	one of several is lost        the work under all of them is cancelled
//
// Lockers that share a Prefix should have the same Lease; a factor of four is tolerated.
//
// # Limits
//
// Leases are not reentrant: a request for a key that the same goroutine holds waits for itself. There are no
// shared (read) leases, and no leases across several Redis masters.
package locking
