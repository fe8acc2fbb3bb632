// Package intake adds the changes of webhook deliveries to the stream, without losing a delivery.
//
//	delivery → its watches (from the registry, cached) → one change per watch → Redis, in one script
//	                                                   ↘ Redis is unreachable → spool on disk → Redis, in order
//
// [NewPlan] computes the changes of a delivery. A delivery names a repository by its remote; the watches of that
// remote determine the paths to update. [Intake.Take] reads the remote's watches from the registry or from a cache.
// The script that adds the changes checks that the watches are current, so a delivery usually costs one round trip.
// The script ignores a delivery whose changes have not settled, or have settled well within a minute. So it is safe to
// retry: if Redis accepts a delivery but its reply is lost, the delivery is spooled, and ignored when it is sent again.
// After a failure, or later, a repeated delivery adds its changes again, which costs one request to the remote.
//
// While the spool contains deliveries that Redis has not refused, new ones are appended to it, to keep the
// order. If it is full, they are sent to Redis directly. [Intake.Run] empties the spool:
//
//	Redis is unreachable                     the delivery stays at the front and is retried 4 times a second
//	Redis refuses a delivery                 it waits for the next pass; it is dropped once older than [watch.Keep]
//	a delivery on disk cannot be decoded     it is dropped, counted, and logged as an error
//	the process is killed while sending      the delivery is sent again, and ignored
//	the process is killed and not restarted  another process with the same directory sends its deliveries
//
// There is no order between concurrent deliveries or between processes. None is needed: a change only says "check the
// remote".
package intake
