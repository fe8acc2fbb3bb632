package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// startGood starts a Git server with one repository, at 127.0.0.1, and returns its URL.
func startGood(t *testing.T) (git *gitserver.Server, url string) {
	t.Helper()
	git = proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), "acme/good", map[string]string{"a": "1"}))(t)
	return git, git.URL("acme/good")
}

// awaitTaken waits until the workers have taken n changes that are not settled.
func (s *service) awaitTaken(n int) {
	s.Helper()
	proctest.Eventually(s.T, func() bool {
		pending, err := s.client.XPending(context.Background(), "lockstep:{0}:changes", "workers").Result()
		return err == nil && pending.Count == int64(n)
	}, "workers have taken %d changes", n)
}

// TestHostsThatHangDelayNoOther publishes a change to a repository of a good host once workers have taken those of hosts that hang. The
// good one settles within 20 s, although none of the others has ended: neither side has closed a connection by then.
func TestHostsThatHangDelayNoOther(t *testing.T) {
	t.Parallel()
	const most = 20 * time.Second // for a change on the good host
	silent := func(scheme string, hosts, repos int) func(*testing.T, *atomic.Int32) []string {
		return func(t *testing.T, ended *atomic.Int32) (urls []string) {
			for n := range hosts {
				s := startSilent(t, 2+n%200, ended)
				for i := range repos {
					urls = append(urls, fmt.Sprintf("%s%s/hung/%d-%d.git", scheme, s.addr, n, i))
				}
			}
			return urls
		}
	}
	for name, tc := range map[string]struct {
		long bool
		urls func(_ *testing.T, ended *atomic.Int32) []string // of the repositories on hosts that hang, which count connections that have ended
	}{
		"100 repositories of one host": {false, silent("http://", 1, 100)},
		"300 hosts":                    {false, silent("http://", 300, 1)},
		"100 changes of one repository": {true, func(t *testing.T, ended *atomic.Int32) []string {
			return slices.Repeat([]string{"http://" + startSilent(t, 2, ended).addr + "/hung/one.git"}, 100)
		}},
		"10 hosts of 50 repositories":   {true, silent("http://", 10, 50)},
		"50 hosts in the TLS handshake": {true, silent("https://", 50, 1)},
		"20 hosts after the status": {true, func(t *testing.T, ended *atomic.Int32) (urls []string) {
			for n := range 20 {
				h := startRemote(t, 2+n, http.NotFoundHandler())
				h.does(func(_ remoteRequest, w http.ResponseWriter, r *http.Request) bool {
					w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
					_, _ = w.Write([]byte("001e# serv"))
					_ = http.NewResponseController(w).Flush()
					defer ended.Add(1)
					return hangs(remoteRequest{}, w, r)
				})
				urls = append(urls, h.url("hung/status"))
			}
			return urls
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.long {
				testenv.Long(t)
			}
			t.Parallel()
			git, good := startGood(t)
			var ended atomic.Int32
			urls := tc.urls(t, &ended)
			s := startService(t, nil, "--slots", "2")
			for _, url := range urls {
				s.publish(url)
			}
			s.awaitTaken(len(urls)) // so waiting for a host costs no place in the window
			for n := range 3 {
				commit := proctest.Must(git.Commit(t.Context(), "acme/good", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(n)}}))(t)
				began := time.Now()
				if r := s.awaitSynced(s.publish(good, "after", commit)); r.After != commit {
					t.Errorf("synced to %s, want %s", r.After, commit)
				}
				took := time.Since(began).Round(time.Millisecond)
				t.Logf("a change on the good host took %v", took)
				if took > most {
					t.Errorf("a change on the good host took %v, want at most %v", took, most)
				}
			}
			if n := ended.Load(); n > 0 {
				t.Skipf("%d connections to hosts that hang have ended: the machine is too slow for this test", n)
			}
			if n := len(s.results()); n != 3 {
				t.Errorf("%d results, want those of the good host", n)
			}
		})
	}
}

// TestHostThatStallsInTheMiddleOfAPack has packs of ten repositories stop halfway. Another repository of the host, and one of another
// host, settle meanwhile; once the connections break, the ten are synced too.
func TestHostThatStallsInTheMiddleOfAPack(t *testing.T) {
	t.Parallel()
	const stalled = 10
	_, good := startGood(t)
	h := startRemote(t, 2, startSameEverywhere(t))
	cut := make(chan struct{})
	var inPack atomic.Int32
	h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		if !request.pack || !strings.HasPrefix(request.repo, "stalled/") {
			return false
		}
		answer := httptest.NewRecorder()
		h.next.ServeHTTP(answer, r)
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		inPack.Add(1)
		select {
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
		}
		return true
	})
	s := startService(t, nil, "--slots", "2")
	var entries []string
	for n := range stalled {
		entries = append(entries, s.publish(h.url(fmt.Sprint("stalled/", n))))
	}
	proctest.Eventually(t, func() bool { return inPack.Load() == stalled }, "all packs have stalled")
	s.awaitSynced(s.publish(h.url("acme/another")))
	s.awaitSynced(s.publish(good))
	if n := len(s.results()); n != 2 {
		t.Errorf("%d results, want those of the two that do not stall", n)
	}
	h.does(nil)
	close(cut)
	s.awaitAllSynced(entries)
}

// TestRepositoriesThatHangDelayNoOtherOfTheirHost has many more repositories of a host hang than it may have requests in flight.
func TestRepositoriesThatHangDelayNoOtherOfTheirHost(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const hung = 80
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		return strings.HasPrefix(request.repo, "hung/") && hangs(request, w, r)
	})
	s := startService(t, nil, "--slots", "2")
	s.awaitSynced(s.publish(h.url("acme/good")))
	for n := range hung {
		s.publish(h.url(fmt.Sprint("hung/", n)))
	}
	for range 5 {
		s.awaitSynced(s.publish(h.url("acme/good")))
	}
}

// TestLimitedHostIsAskedSeldom has a host refuse one credential for all of many repositories. Until the time that it names has passed, it
// gets at most 20 requests with that credential, while changes of another credential on the same host, and of another host, settle. Once
// it answers again, everything is synced, and no attempt was counted.
func TestLimitedHostIsAskedSeldom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status     int
		retryAfter time.Duration
		block      time.Duration // how long at most 20 requests may come
	}{
		"429":                     {http.StatusTooManyRequests, 0, 2 * time.Second},
		"429 with Retry-After":    {http.StatusTooManyRequests, testenv.Form(2*time.Second, 10*time.Second), testenv.Form(2*time.Second, 10*time.Second)},
		"503 with Retry-After":    {http.StatusServiceUnavailable, 2 * time.Second, 2 * time.Second},
		"403 with Retry-After":    {http.StatusForbidden, 2 * time.Second, 2 * time.Second},
		"429 with a distant time": {http.StatusTooManyRequests, 4 * time.Second, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "429" && name != "429 with Retry-After" && name != "503 with Retry-After" {
				testenv.Long(t)
			}
			t.Parallel()
			const most = 20
			repos := testenv.Form(60, 200)
			_, good := startGood(t)
			h := startRemote(t, 2, startSameEverywhere(t))
			var mu sync.Mutex
			var refused []time.Time
			h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
				if request.token != "limited" {
					return false
				}
				mu.Lock()
				refused = append(refused, time.Now())
				mu.Unlock()
				return answers(tc.status, tc.retryAfter)(request, w, r)
			})
			env := slices.Concat(credentialFor("ONE", "limited", h.base), credentialFor("TWO", "spare", h.base))
			s := startService(t, env, "--slots", "4")
			var entries []string
			for n := range repos {
				entries = append(entries, s.publish(h.url(fmt.Sprint("acme/limited-", n)), "credential", "one"))
			}
			proctest.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(refused) > 0 }, "the host refuses a request")
			s.awaitSynced(s.publish(h.url("acme/spare"), "credential", "two"))
			s.awaitSynced(s.publish(good))
			mu.Lock()
			ends := refused[0].Add(tc.block)
			mu.Unlock()
			time.Sleep(time.Until(ends)) // the requests of that time are counted
			mu.Lock()
			during := 0
			for _, at := range refused {
				if at.Before(ends) {
					during++
				}
			}
			mu.Unlock()
			if during > most {
				t.Errorf("%d requests within %v, want at most %d", during, tc.block, most)
			}
			if n := len(s.results()); n != 2 {
				t.Errorf("%d results while the host refuses the credential, want 2", n)
			}
			t.Logf("%d requests within %v", during, tc.block)
			h.does(nil)
			s.awaitAllSynced(entries)
			if n := s.charged(); n > 0 {
				t.Errorf("%d changes have more than one attempt", n)
			}
		})
	}
}

// TestHostThatFailsForAllGetsFewRequests has a host answer 500 or 503 for everything, without Retry-After. Although a backoff is short, it
// gets only the five requests for each repository that open the repository's circuit breaker, and a few probes, and another host's change settles. Once the
// host answers, so does everything else.
func TestHostThatFailsForAllGetsFewRequests(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			const repos, apps, during, most = 30, 3, 15 * time.Second, 8 * 30 // without the breakers, each change is tried eight times, and given up
			_, good := startGood(t)
			h := startRemote(t, 2, startSameEverywhere(t))
			h.does(answers(status, 0))
			s := startService(t, nil, "--slots", "2", "--lease", "1s")
			var entries []string
			for n := range repos * apps {
				entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n%repos)), "app", fmt.Sprint("app-", n/repos)))
			}
			proctest.Eventually(t, func() bool { return len(h.seen()) > 0 }, "the host has failed")
			s.awaitSynced(s.publish(good))
			time.Sleep(time.Until(h.seen()[0].at.Add(during))) // the requests of that time are counted
			h.does(nil)
			n := len(h.seen())
			t.Logf("%d requests within %v", n, during)
			if n > most {
				t.Errorf("%d requests within %v, want at most %d", n, during, most)
			}
			s.awaitAllSynced(entries)
		})
	}
}

// TestHostThatAnswersAgain has a host break all connections, or answer none until it is restarted. Once it answers, the repositories that
// only waited for it are synced soon, although a backoff takes half a minute. For those that failed see TestChangeThatFailedIsSyncedAfterTheOutage.
func TestHostThatAnswersAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		long   bool
		outage func(h *remoteHost) (end func())
	}{
		"connections break": {false, func(h *remoteHost) func() {
			h.does(drops)
			return func() { h.does(nil) }
		}},
		"no answer until a restart": {true, func(h *remoteHost) func() {
			restart := make(chan struct{})
			h.does(func(_ remoteRequest, _ http.ResponseWriter, r *http.Request) bool {
				select {
				case <-restart:
					panic(http.ErrAbortHandler)
				case <-r.Context().Done():
					return true
				}
			})
			return func() { h.does(nil); close(restart) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.long {
				testenv.Long(t)
			}
			t.Parallel()
			const repos = 40
			h := startRemote(t, 2, startSameEverywhere(t))
			end := tc.outage(h)
			s := startService(t, nil, "--slots", "2", "--lease", "10m", "--lock-wait", "10m")
			entries := map[string]string{} // by repository
			for n := range repos {
				repo := fmt.Sprint("acme/r-", n)
				entries[repo] = s.publish(h.url(repo))
			}
			proctest.Eventually(t, func() bool { return len(h.seen()) >= 5 }, "the host has failed")
			s.awaitTaken(repos)
			end()
			began := time.Now()
			for _, failed := range h.repos() {
				delete(entries, failed)
			}
			if len(entries) == 0 {
				t.Fatal("no repository waits for the host, so the test proves nothing")
			}
			s.awaitAllSynced(slices.Collect(maps.Values(entries)))
			took := time.Since(began).Round(time.Millisecond)
			t.Logf("all %d that waited are synced %v after the host answers", len(entries), took)
			if most := 25*time.Second + margin(); took > most {
				t.Errorf("all that waited are synced %v after the host answers, want at most %v", took, most)
			}
		})
	}
}

// TestRepositoryThatFailsIsLeftAlone has one repository of a host answer 500 for the changes of many apps: it is asked a few times, others
// of the host as usual, and once it is well again, everything is synced.
func TestRepositoryThatFailsIsLeftAlone(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	const changes = 30
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(ofRepo("acme/bad", answers(http.StatusInternalServerError, 0)))
	s := startService(t, nil, "--slots", "2", "--lease", "2s")
	bad := func() (n int) {
		for _, r := range h.seen() {
			if r.repo == "acme/bad" {
				n++
			}
		}
		return n
	}
	var entries []string
	for n := range changes {
		entries = append(entries, s.publish(h.url("acme/bad"), "app", fmt.Sprint("app-", n)))
	}
	proctest.Eventually(t, func() bool { return bad() >= 5 }, "the repository has failed five times")
	for n := range 20 {
		s.awaitSynced(s.publish(h.url(fmt.Sprint("acme/good-", n))))
	}
	if n := bad(); n > 10 {
		t.Errorf("%d requests for the repository that fails, want at most 10", n)
	}
	h.does(nil)
	s.awaitAllSynced(entries)
}

// TestLimitedHostServesInOrder lets a host have one request in flight. Polls wait for it first, then some pushes, then more: the pushes go
// before the polls, and the earlier ones before the later ones.
func TestLimitedHostServesInOrder(t *testing.T) {
	t.Parallel()
	const each = 4
	h := startRemote(t, 2, startSameEverywhere(t))
	release := make(chan struct{})
	var inFlight, most atomic.Int32
	h.does(func(request remoteRequest, w http.ResponseWriter, r *http.Request) bool {
		most.Store(max(most.Load(), inFlight.Add(1)))
		defer inFlight.Add(-1)
		if request.repo == "acme/first" {
			<-release
		}
		h.next.ServeHTTP(w, r)
		return true
	})
	s := startService(t, nil, "--slots", "4", "--host-requests", h.name+"=1")
	entries := []string{s.publish(h.url("acme/first"))}
	proctest.Eventually(t, func() bool { return len(h.seen()) == 1 }, "the first request")
	waiting := 0
	push := func(name string) {
		t.Helper()
		for n := range each {
			entries = append(entries, s.publish(h.url(fmt.Sprintf("%s/%d", name, n))))
		}
		waiting += each
		s.awaitWaiting(h.name, waiting)
	}
	for n := range each {
		s.watch(map[string]any{"app": "docs", "url": h.url(fmt.Sprint("poll/", n))}) // polls at once
	}
	waiting += each
	s.awaitWaiting(h.name, waiting)
	push("early")
	push("late")
	close(release)
	for _, entry := range entries {
		s.awaitSynced(entry)
	}
	proctest.Eventually(t, func() bool { return len(h.repos()) == waiting+1 }, "all were asked for")
	var order []string
	for _, repo := range h.repos() {
		group, _, _ := strings.Cut(repo, "/")
		order = append(order, group)
	}
	if got := strings.Join(slices.Compact(order), " "); got != "acme early late poll" {
		t.Errorf("the host was asked for %q, want the early pushes, the late ones, and then the polls", h.repos())
	}
	if n := most.Load(); n > 1 {
		t.Errorf("%d requests at a time, want 1", n)
	}
}

// awaitWaiting waits until n changes wait for a host in the process.
func (s *service) awaitWaiting(host string, n int) {
	s.Helper()
	waiting := 0.0
	proctest.Eventually(s.T, func() bool {
		waiting = samplesOf(s.T, s.address)[fmt.Sprintf(`lockstep_host_requests_waiting{host="%s"}`, host)]
		return waiting == float64(n)
	}, "%d changes wait for %s; the metrics say %v", n, host, &waiting)
}
