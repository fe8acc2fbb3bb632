// Package intake brings webhook deliveries to the stream of changes, and lets none be forgotten.
//
//	delivery → what it concerns (the registry, cached) → one change for each watch → Redis, in one script
//	                                                   ↘ Redis is away → the spool on disk → Redis, in order
//
// [Plan] says what a delivery comes to. A repository is known by its remote, which the forge names; at which paths
// it is kept, one or several, is the watches' to say. [Intake.Take] asks the registry what is watched of the remote,
// or remembers; the script that adds the changes checks that this still holds, so that the usual delivery costs
// one round trip. It also keeps the ledger: a delivery whose id was there before adds nothing. That is what makes it
// right to try again whenever in doubt: a delivery that Redis has taken, though its answer was lost, is
// spooled, and adds nothing when its turn comes.
//
// While the spool has something of this process, new deliveries go behind it, for the order; when it is
// full they go to Redis at once, if that is back. [Intake.Run] empties it:
//
//	Redis is away                        the delivery stays first, and is tried again, after 50 ms to 1 s
//	Redis refuses                        it goes behind the others, until it is older than [Config].Keep
//	what is on disk cannot be read       it is dropped, with an error in the log, and counted
//	the process is killed in between     it is taken again; the ledger knows it
//	the process is killed and not back   another one in the same folder adopts what it has left
//
// Not promised: an order between deliveries that are under way at once, or between processes. Each change
// says "look now"; the newest look is right whichever comes last.
package intake
