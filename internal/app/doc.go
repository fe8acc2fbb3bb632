// Package app assembles and runs a Lockstep process.
//
// [Serve] opens Redis, the listeners and the spool, then runs the roles of the process in one errgroup: the
// worker ([RunWorker]), the scheduler (polls and reconciliation), the notifier (posts results to apps) and
// HTTP ([ServeHTTP]: API, webhooks, dashboard).
//
// A stop drains: /readyz fails, the worker returns waiting changes to the stream, jobs in flight get the
// grace period, and HTTP closes last.
//
// # Failures
//
//	failure                          effect
//	Redis unavailable at the start   the worker waits; /readyz fails unless webhooks can be spooled
//	Redis unavailable later          handlers retry; /livez stays OK
//	volume missing or replaced       the volume check of /readyz fails
//	a handler's loop hangs           /readyz fails after 1 min, /livez and the systemd watchdog after 3 min
//	a role returns an error          all roles stop and Serve returns the error
//	grace period exceeded            other workers take over when the leases expire
package app
