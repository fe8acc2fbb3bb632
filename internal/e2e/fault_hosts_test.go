package e2e

import (
	"context"
	"fmt"
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
// good one settles although none of the others ever ends.
func TestHostsThatHangDelayNoOther(t *testing.T) {
	t.Parallel()
	silent := func(scheme string, hosts, repos int) func(*testing.T) []string {
		return func(t *testing.T) (urls []string) {
			for n := range hosts {
				s := startSilent(t, 2+n%200)
				for i := range repos {
					urls = append(urls, fmt.Sprintf("%s%s/hung/%d-%d.git", scheme, s.addr, n, i))
				}
			}
			return urls
		}
	}
	for name, tc := range map[string]struct {
		long bool
		urls func(*testing.T) []string // of the repositories on hosts that hang
	}{
		"100 repositories of one host": {false, silent("http://", 1, 100)},
		"300 hosts":                    {false, silent("http://", 300, 1)},
		"100 changes of one repository": {true, func(t *testing.T) []string {
			return slices.Repeat([]string{"http://" + startSilent(t, 2).addr + "/hung/one.git"}, 100)
		}},
		"10 hosts of 50 repositories":   {true, silent("http://", 10, 50)},
		"50 hosts in the TLS handshake": {true, silent("https://", 50, 1)},
		"20 hosts after the status": {true, func(t *testing.T) (urls []string) {
			for n := range 20 {
				h := startRemote(t, 2+n, http.NotFoundHandler())
				h.does(func(_ remoteRequest, w http.ResponseWriter, r *http.Request) bool {
					w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
					_, _ = w.Write([]byte("001e# serv"))
					_ = http.NewResponseController(w).Flush()
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
			urls := tc.urls(t)
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
				t.Logf("a change on the good host took %v", time.Since(began).Round(time.Millisecond))
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

// TestHostThatFailsForAllIsLeftAlone has a host answer 500 or 503 for everything, without Retry-After. Another host's change settles, and
// once the host answers, so does everything else.
func TestHostThatFailsForAllIsLeftAlone(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			const repos = 30
			_, good := startGood(t)
			h := startRemote(t, 2, startSameEverywhere(t))
			h.does(answers(status, 0))
			s := startService(t, nil, "--slots", "2")
			var entries []string
			for n := range repos {
				entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n))))
			}
			proctest.Eventually(t, func() bool { return len(h.repos()) == repos }, "each repository was tried")
			s.awaitSynced(s.publish(good))
			h.does(nil)
			s.awaitAllSynced(entries)
		})
	}
}

// TestHostThatAnswersAgain has a host break all connections, or answer none until it is started anew. Once it answers, everything is synced:
// what failed, and what waited for it.
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
			const repos, patience = 40, time.Minute // less than a few attempts of each with its own backoff take
			h := startRemote(t, 2, startSameEverywhere(t))
			end := tc.outage(h)
			s := startService(t, nil, "--slots", "2")
			var entries []string
			for n := range repos {
				entries = append(entries, s.publish(h.url(fmt.Sprint("acme/r-", n))))
			}
			proctest.Eventually(t, func() bool { return len(h.seen()) >= 5 }, "the host has failed")
			s.awaitTaken(repos)
			end()
			began := time.Now()
			s.awaitAllSynced(entries)
			took := time.Since(began).Round(time.Millisecond)
			t.Logf("all synced %v after the host answers", took)
			if took > patience {
				t.Errorf("all synced %v after the host answers, want at most %v", took, patience)
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
	s := startService(t, nil, "--slots", "2", "--circuit-open", "5s")
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
	s := startService(t, nil, "--slots", "4", "--host-limits", h.name+"=1")
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
	s.awaitAllSynced(entries)
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

// awaitWaiting waits until status says that n repositories wait for a host.
func (s *service) awaitWaiting(host string, n int) {
	s.Helper()
	var status map[string]any
	proctest.Eventually(s.T, func() bool {
		status = hostStatus(s.T, s.redis.URL(), host)
		return status["waiting"] == float64(n)
	}, "%d repositories wait for %s; status shows %v", n, host, &status)
}
