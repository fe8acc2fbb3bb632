// Package hosts limits the requests that are sent to remote hosts, over all processes that share a Redis. It protects a host
// from many repositories, and the repositories of other hosts from one that is slow, down or limits its clients.
//
//	budgets, err := hosts.New(hosts.Config{Redis: client, Prefix: "lockstep:{0}:", Process: id, Wake: wake})
//	if err != nil {
//		return err
//	}
//	go budgets.Run(ctx)
//	…
//	permit, err := budgets.Enter(ctx, hosts.Request{Host: "github.com", Credential: "app", Repo: repo, Kind: hosts.Push})
//	if limited, ok := errors.AsType[*hosts.Limited](err); ok {
//		return park(limited.RetryAfter) // the repository is queued, and woken earlier when a permit is free
//	}
//	response, err := http.Get(url)
//	…
//	permit.Done(ctx, hosts.Answer{Status: response.StatusCode, Header: response.Header, Latency: latency, Err: err})
//
// A job that may send several requests for its repository sets Answer.More and calls [Budgets.Leave] at its end. It then keeps
// one permit for all of them, and both steps cost one script call each. [Budgets.Blocked] answers from memory, which asks Redis
// again after half a second. [Reader.Clear] lifts a block.
//
// # Limits
//
// A request needs a permit of its host. A permit is a lease of 20 s in Redis that [Budgets.Run] renews, so the permits of a
// killed process become free. The number of permits of a host adapts to its answers, from 1 to Config.Limit. Polls use at
// most half of them.
//
// A process has at most Config.Total requests in flight; the last quarter is for hosts with fewer than two. While it has a
// quarter of them, a host that has not answered for 30 s gets one. Such requests have half of the total for a second; those
// still without an answer do not count, up to twice the total. So hosts that hang leave room for others.
//
// A host can fail for some of its repositories only. While it has answered others within ten minutes, a repository that it has
// not answered, or not since its last failure, leaves an eighth of the permits, at least one of several, to those, and its
// failures do not count against the host. If the circuit is open, such an answered repository may send a probe ahead of time,
// one in 5 s over all.
//
// A credential that the host limits gets no permits until the end of that block. Afterwards it starts with one request at a
// time, and one more after each success, which doubles the number every round trip. Other credentials are not affected, unless
// the host has refused two of them within a minute: then it is blocked as a whole, for at most 5 min.
//
//	answer                                         effect
//	any other (also 401, 404)                      success: ends consecutive failures; the limit grows by one per round trip
//	the same, but later than 4 × the minimum of    the limit is halved
//	the last 5 to 10 min, and 500 ms above it
//	5xx, or a timeout after the status             the limit is halved
//	no answer: timeout, refused, DNS, broken       the limit is halved; after 5 in a row the circuit opens for 5 s, then one
//	                                               probe at a time; each failed probe doubles that, up to 5 min
//	success of a probe                             the circuit closes; slow start from 4 permits, one more per success
//	429, or 503 with Retry-After, or 403 with it   the limit is halved; the credential is blocked for Retry-After, or until
//	or with X-RateLimit-Remaining: 0               X-RateLimit-Reset, at most 24 h; without either for 1 s, doubled up to 5 min
//	success with X-RateLimit-Remaining: 0          the credential is blocked until X-RateLimit-Reset
//	success with less than a tenth remaining       the rest of the quota is spread evenly over the time until the reset
//	cancelled, an error of this side               none
//
// The limit is halved at most once a second, and not for requests that began before the last time. Headers without X- are
// understood too. Dates are compared with the Date header.
//
// # Waiting
//
// A repository that gets no permit, or whose request the host limited, is queued in Redis, unless the request is optional, once
// per credential: pushes before retries before polls, then the one whose last permit is longest ago. The order of a kind is an
// offset of time, so retries and polls wait at most 15 min and 1 h longer than pushes, and none waits forever. When a permit
// becomes free, it is reserved for the first repository for 5 s, and the process that noticed calls Config.Wake with it. If no
// change of the repository is parked, because it is in flight again, has been settled meanwhile or is not parked yet, the permit
// goes to the next waiter, and the process looks for the change again, once a second for 5 s. Done notices at once; Run of any
// process notices ends of blocks and lapsed leases within about 200 ms, and lifted blocks within a second. A reservation that is
// neither used nor given up lapses, and the repository is queued again, because the process that was to wake it may have been
// killed. After the second time its change comes when it is due by itself.
//
// No script call depends on the number of waiters, except by a logarithm.
//
// # Failures
//
//	a process is killed      its permits lapse after 20 s; another process wakes its waiters after 5 s
//	a caller forgets Done    its permit is in use for as long as the process runs
//	Redis is away            no error, a warning in the log: each process uses its part of the last known limit, at least one
//	                         permit per host, and remembers blocks by itself. Nothing is queued; RetryAfter is short.
//	                         Permits that end meanwhile are free again within 3 s of its return
//	Redis restarts empty     limits and blocks are learned again; requests in flight are not counted
//	clocks differ            no effect: times are those of Redis, or differences
//
// # Sources
//
// Additive increase and multiplicative decrease: Chiu and Jain, Analysis of the Increase and Decrease Algorithms for
// Congestion Avoidance, 1989. Slow start, and one decrease per round trip: Jacobson, Congestion Avoidance and Control, 1988,
// and RFC 5681. Latency against a moving minimum: Brakmo and Peterson, TCP Vegas, 1995, and Netflix' concurrency-limits.
// Circuit breaker: Nygard, Release It!, 2007. Retry-After: RFC 9110, section 10.2.3. RateLimit headers: the IETF draft
// ratelimit-headers, and GitHub's and GitLab's X- and plain forms.
package hosts
