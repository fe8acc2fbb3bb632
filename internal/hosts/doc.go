// Package hosts limits the requests to remote hosts. It protects a host from many repositories, and the
// repositories of other hosts from one that is slow, down or limits its clients.
//
//	job := limiter.Job(repo.Key(), poll)
//	defer job.Leave(ctx)
//	if err := job.Enter(ctx, hosts.Target{Host: "github.com", Credential: "app"}); err != nil {
//		return err // try again after its RetryAfter; the repository keeps its place
//	}
//	… // acquire the lease
//	session, err := network.Dial(url, auth, foreign, wire.Limits{Limiter: job.With("app")})
//
// A place covers one request. Enter waits for that of the first before the lease is acquired, if few wait in the
// process; otherwise it returns an error with the delay until the repository's turn. Requests under the lease wait for
// places by the same rule.
//
// # In a process
//
// A host has 16 requests in flight, and 4 if it has not answered for 30 s. A job has at most a quarter of a host's
// places. An eighth is left to repositories that it has answered lately. Pushes go before polls, then who came
// first. Polls get every tenth place, and at most half of them.
//
// A quarter of the jobs in flight may wait for hosts as pushes and an eighth as polls, for each host a half of what
// is left. All hosts that do not answer have a quarter of the jobs in flight, and another one for the first request
// to each.
//
// # In Redis, per host and credential
//
//	answer                                              effect
//	429, 403 with Retry-After or X-RateLimit-           the credential is blocked for that time; if it is unknown,
//	                                                    for 1 s,
//	Remaining: 0, or success with that                  doubled up to 5 min
//	no connection                                       blocked for 1 s, doubled up to 5 min
//	5xx, timeout or broken connection for three         the same; 503 with Retry-After for that time
//	repositories, and no good answer since they began
//	the same for fewer, while others are answered, or   none: the trouble is the repository's
//	for those never answered, if others were lately
//	any other, also 401 and 404                         good
//
// When a block ends, one repository over all processes goes on, and after each good answer twice as many. If
// several are refused then, the first waits for the end of a short block under its lease, because it would have to
// begin anew otherwise, and the others get their places back. After 20 refusals in a row it goes to the end.
//
// A repository that must wait has one place in a queue, however many changes it has, and keeps it until it is let
// in. Its job asks again shortly before its turn, by the rate at which others are let in, but after 60 to 90 s at
// most; if that is within 2 s, in the process. Who stays away for 90 s longer loses the place. If nobody who was
// expected comes, others may.
//
// # Failures
//
//	a process is killed      a repository that was let in after a block counts for 20 s more
//	Redis is away            each process uses what it knows; blocks are not shared, and places not kept
//	Redis restarts empty     blocks are learned again
//	clocks differ            no effect: times are those of Redis, or differences
package hosts
