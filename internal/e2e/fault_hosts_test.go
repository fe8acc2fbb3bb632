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
		"100 repositories of one host":  {false, silent("http://", 1, 100)},
		"300 hosts":                     {false, silent("http://", 300, 1)},
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
		"429":                  {http.StatusTooManyRequests, 0, 2 * time.Second},
		"503 with Retry-After": {http.StatusServiceUnavailable, testenv.Form(2*time.Second, 10*time.Second), testenv.Form(2*time.Second, 10*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
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
			log := s.process.Log.String()
			if tc.status == http.StatusTooManyRequests && (!strings.Contains(log, `msg="host limited" `) || !strings.Contains(log, "host="+h.name+" credential=one reason=")) {
				t.Errorf("the log does not name the host and the credential:\n%s", log)
			}
		})
	}
}

// TestHostThatAnswersAgain has a host break all connections. Once it answers, the repositories that only waited for it are synced soon,
// although a backoff takes half a minute.
func TestHostThatAnswersAgain(t *testing.T) {
	t.Parallel()
	const repos = 40
	h := startRemote(t, 2, startSameEverywhere(t))
	h.does(drops)
	s := startService(t, nil, "--slots", "2", "--lease", "10m", "--lock-wait", "10m")
	entries := map[string]string{} // by repository
	for n := range repos {
		repo := fmt.Sprint("acme/r-", n)
		entries[repo] = s.publish(h.url(repo))
	}
	proctest.Eventually(t, func() bool { return len(h.seen()) >= 5 }, "the host has failed")
	s.awaitTaken(repos)
	h.does(nil)
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
}
