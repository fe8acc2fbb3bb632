package notify

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// soon sets a schedule of the given number of attempts with minimal delays.
func soon(attempts int) func(*Config) {
	return func(c *Config) {
		c.schedule = make([]time.Duration, attempts)
		for i := range attempts {
			c.schedule[i] = time.Duration(min(i, 1)) * 5 * time.Millisecond
		}
	}
}

// mustBeInOrder checks that the results of each app and repository were sent in order, each until it was delivered, and
// that all attempts of one had the same ID.
func mustBeInOrder(t *testing.T, posts []post, each int) {
	t.Helper()
	next := map[string]int{}
	ids := map[string]string{}
	for _, p := range posts {
		box := p.path + " " + p.result.Repo.String()
		if want := fmt.Sprintf("%d/%s", next[box], box); p.result.ID != want {
			t.Fatalf("%s was sent %s, want %s", box, p.result.ID, want)
		}
		if id := ids[p.result.ID]; id != "" && id != p.id() {
			t.Fatalf("%s has the IDs %s and %s", p.result.ID, id, p.id())
		}
		ids[p.result.ID] = p.id()
		if p.status/100 == 2 {
			next[box]++
		}
	}
	for box, n := range next {
		if n != each {
			t.Errorf("%s was sent %d results, want %d", box, n, each)
		}
	}
}

func TestRetryUntilTheAppAnswers(t *testing.T) {
	w := newWorld(t)
	var up atomic.Bool
	var tries atomic.Int64
	apps := newReceiver(t, func(rw http.ResponseWriter, _ post) int {
		switch {
		case up.Load():
			return http.StatusOK
		case tries.Add(1)%2 == 0:
			return http.StatusInternalServerError
		}
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err == nil {
			_ = conn.Close()
		}
		return 0
	})
	w.signsFor(apps.URL)
	w.watch("docs", apps.URL+"/docs", "acme/a", "acme/b", "acme/c")
	w.run(soon(100_000))
	const each = 7
	for i := range each {
		for _, repo := range []string{"acme/a", "acme/b", "acme/c"} {
			w.publish(synced(t, fmt.Sprintf("%d//docs %s", i, repo), "docs", repo))
		}
	}
	apps.await(atLeast(30))
	up.Store(true)
	w.await(OutcomeDelivered, 3*each)
	mustBeInOrder(t, apps.await(atLeast(0)), each)
	if n := w.waiting(); n != 0 || len(w.letters()) != 0 {
		t.Errorf("%d queued, %d dead letters", n, len(w.letters()))
	}
	left := slices.Sorted(slices.Values(w.redis.Keys(t.Context(), namespace.Notifications()+":*").Val()))
	if !slices.Equal(left, []string{namespace.Notifications() + ":numbers", namespace.Notifications() + ":sent:docs"}) {
		t.Errorf("left in Redis: %q", left)
	}
	if n := w.redis.ZCard(t.Context(), left[1]).Val(); n != 3*each {
		t.Errorf("%d results are recorded as accepted, want %d", n, 3*each)
	}
}

// An app that never answers must not delay the other one.
func TestSlowAppDoesNotDelayOthers(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	var hanging atomic.Int64
	apps := newReceiver(t, func(_ http.ResponseWriter, p post) int {
		if p.path == "/slow" || p.result.Repo.Key() == "acme/hung" {
			hanging.Add(1)
			<-release
		}
		return http.StatusOK
	})
	defer close(release)
	w.signsFor(apps.URL)
	var repos []string
	for i := range 20 {
		repos = append(repos, fmt.Sprintf("acme/r%d", i))
	}
	w.watch("slow", apps.URL+"/slow", repos...)
	w.watch("fast", apps.URL+"/fast", append(repos, "acme/hung")...)
	w.run(func(c *Config) { c.Grace = time.Millisecond })
	w.publish(synced(t, "h", "fast", "acme/hung"))
	for _, repo := range repos {
		w.publish(synced(t, "0//slow "+repo, "slow", repo), synced(t, "0//fast "+repo, "fast", repo))
	}
	w.await(OutcomeDelivered, len(repos))
	for _, p := range apps.await(atLeast(len(repos))) {
		if p.path != "/fast" {
			t.Errorf("%s answered", p.path)
		}
	}
	if n := hanging.Load(); n > 5 { // four of slow, and one of fast
		t.Errorf("%d posts hang", n)
	}
}

func TestRedirectIsAFailure(t *testing.T) {
	w := newWorld(t)
	elsewhere := newReceiver(t, ok)
	apps := newReceiver(t, func(rw http.ResponseWriter, _ post) int {
		rw.Header().Set("Location", elsewhere.URL+"/stolen")
		return http.StatusTemporaryRedirect
	})
	w.signsFor(apps.URL, elsewhere.URL)
	w.watch("docs", apps.URL+"/docs?token=hunter2", "acme/a")
	w.run(soon(3))
	w.publish(synced(t, "r1", "docs", "acme/a"))
	w.await(OutcomeGivenUp, 1)
	if n := len(elsewhere.await(atLeast(0))); n != 0 {
		t.Error("the redirect was followed")
	}
	letters := w.letters()
	if n := len(apps.await(atLeast(3))); n != 3 || len(letters) != 1 {
		t.Fatalf("%d posts, %d dead letters", n, len(letters))
	}
	l := letters[0]
	if l.Reason != "attempts used up" || l.Attempts != 3 || !strings.Contains(l.Error, "307") || l.Group != Group || l.Stream != namespace.Notifications() ||
		strings.Contains(fmt.Sprint(l)+w.log.String(), "hunter2") {
		t.Errorf("letter: %+v", l)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	w := newWorld(t)
	apps := newReceiver(t, func(rw http.ResponseWriter, p post) int {
		if p.path == "/seconds" {
			rw.Header().Set("Retry-After", "7200")
			return http.StatusTooManyRequests
		}
		rw.Header().Set("Retry-After", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
		return http.StatusServiceUnavailable
	})
	w.signsFor(apps.URL)
	w.watch("seconds", apps.URL+"/seconds", "acme/a")
	w.watch("date", apps.URL+"/date", "acme/a")
	w.run()
	w.publish(synced(t, "1", "seconds", "acme/a"), synced(t, "2", "date", "acme/a"))
	w.await(OutcomeFailed, 2)
	for _, app := range []string{"seconds", "date"} {
		due := must(w.redis.ZScore(t.Context(), namespace.Notifications()+":due:"+app, "acme/a").Result())(t)
		if in := time.Until(time.UnixMilli(int64(due))); in < 119*time.Minute || in > 121*time.Minute {
			t.Errorf("%s: retry in %v, want 2h", app, in)
		}
	}
}

func TestPost(t *testing.T) {
	w, apps := newApp(t)
	w.run()
	result := synced(t, "push-4711/1795223511201-0", "docs", "acme/a")
	w.publish(result)
	p := apps.await(atLeast(1))[0]
	if p.header.Get("Content-Type") != "application/cloudevents+json" || p.header.Get("User-Agent") != "lockstep/test" {
		t.Errorf("headers: %v", p.header)
	}
	if strings.Contains(p.id(), ".") || p.id() != idOf(result, "docs") || p.id() == idOf(result, "site") {
		t.Errorf("id %q", p.id())
	}
	if p.result.ID != result.ID || p.result.After != result.After || len(p.result.Files) != 1 {
		t.Errorf("result: %+v", p.result)
	}
}

// TestKnownSignature uses the example of the reference libraries.
func TestKnownSignature(t *testing.T) {
	got, err := signature([]string{secret}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := signature([]string{"whsec_hunter2?"}, "i", time.Now(), nil); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret that is not base64: %v", err)
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		host  string
		hosts []string
		sent  bool
	}{
		"a name of loopback":           {"localhost", nil, false},
		"listed":                       {"localhost", []string{"localhost"}, true},
		"another is listed":            {"127.0.0.1", []string{"10.0.0.0/8"}, false},
		"metadata, whatever is listed": {"169.254.169.254", []string{"0.0.0.0/0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			apps := newReceiver(t, ok)
			_, port, _ := strings.Cut(strings.TrimPrefix(apps.URL, "http://"), ":")
			url := "http://" + tc.host + ":" + port
			w.signsFor(url)
			w.watch("docs", url+"/docs", "acme/a")
			w.run(soon(1), func(c *Config) { c.Hosts = tc.hosts })
			w.publish(synced(t, "1", "docs", "acme/a"))
			if tc.sent {
				w.await(OutcomeDelivered, 1)
				return
			}
			w.await(OutcomeGivenUp, 1)
			if n := len(apps.await(atLeast(0))); n != 0 {
				t.Error("it was notified")
			}
			if l := w.letters()[0]; !strings.Contains(l.Error, "notify-hosts") {
				t.Errorf("error: %s", l.Error)
			}
		})
	}
}
