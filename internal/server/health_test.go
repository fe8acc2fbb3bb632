package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/server"
	"lockstep/internal/telemetry"
)

// found is what checks that pass or fail as they are told come to: "+name", "-name" or "!name" for each.
func found(checks []server.Check, failing ...string) (ok bool, marks string) {
	for i := range checks {
		name := checks[i].Name
		checks[i].Now = func() error {
			if slices.Contains(failing, name) {
				return errors.New("it is told to fail")
			}
			return nil
		}
	}
	report := server.NewHealth(checks...).Report(context.Background())
	for _, c := range report.Checks {
		switch {
		case c.OK:
			marks += "+"
		case c.Counts:
			marks += "-"
		default:
			marks += "!"
		}
	}
	return report.OK, marks
}

func TestWhichFailuresCount(t *testing.T) {
	receiver := func() []server.Check {
		return []server.Check{{Name: "redis", Or: "spool"}, {Name: "spool", Or: "redis"}, {Name: "changes", Behind: "redis"}, {Name: "volume", Shown: true}}
	}
	for name, tc := range map[string]struct {
		failing []string
		ok      bool
		marks   string
	}{
		"nothing":                              {nil, true, "++++"},
		"one of two that do in place":          {[]string{"redis"}, true, "!+++"},
		"the other":                            {[]string{"spool"}, true, "+!++"},
		"both":                                 {[]string{"redis", "spool"}, false, "--++"},
		"what is behind another":               {[]string{"changes"}, false, "++-+"},
		"what is behind one that fails":        {[]string{"redis", "changes"}, true, "!+!+"},
		"behind one that fails, and no escape": {[]string{"redis", "spool", "changes"}, false, "--!+"},
		"what is only shown":                   {[]string{"volume"}, true, "+++!"},
	} {
		t.Run(name, func(t *testing.T) {
			if ok, marks := found(receiver(), tc.failing...); ok != tc.ok || marks != tc.marks {
				t.Errorf("%t %s, want %t %s", ok, marks, tc.ok, tc.marks)
			}
		})
	}
	if ok, _ := found([]server.Check{{Name: "redis", Or: "spool"}}, "redis"); ok {
		t.Error("a check that is not there did in another's place")
	}
}

func TestChecksAreMadeOnceASecondHoweverManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		health := server.NewHealth(server.Check{Name: "redis", Run: func(context.Context) error {
			asked.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}})
		for range 2 {
			var many sync.WaitGroup
			for range 50 {
				many.Go(func() {
					if !health.Report(t.Context()).OK {
						t.Error("not ok")
					}
				})
			}
			many.Wait()
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times at once, want once", n)
		}
		time.Sleep(2 * time.Second)
		health.Report(t.Context())
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times, want a second time after a while", n)
		}
	})
}

func TestAFailureIsLookedAtAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		health := server.NewHealth(server.Check{Name: "volume", Run: func(context.Context) error {
			if asked.Add(1) == 1 {
				return errors.New("it is not open yet")
			}
			return nil
		}})
		for range 20 {
			if health.Report(t.Context()).OK {
				t.Fatal("ok at once")
			}
		}
		time.Sleep(100 * time.Millisecond)
		if !health.Report(t.Context()).OK || asked.Load() != 2 {
			t.Errorf("not ok after 100 ms, and asked %d times", asked.Load())
		}
	})
}

func TestACheckThatHangsIsGivenASecondAndBegunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var begun atomic.Int32
		health := server.NewHealth(
			server.Check{Name: "volume", Run: func(context.Context) error { begun.Add(1); <-release; return nil }},
			server.Check{Name: "redis", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("it does not answer") }},
		)
		for range 5 {
			began := time.Now()
			report := health.Report(t.Context())
			if took := time.Since(began); took > time.Second || report.OK || report.Checks[0].Reason != "no answer within a second" || report.Checks[1].OK {
				t.Errorf("%+v after %v", report, took)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("%d goroutines hang, want 1", n)
		}
		close(release)
		synctest.Wait()
		if report := health.Report(t.Context()); !report.Checks[0].OK {
			t.Errorf("it has ended, and still: %+v", report)
		}
	})
}

// TestWhatPassedIsNotTakenBackByWhoAsksLater is of one who asks while a check is fresh, and has another to wait for.
func TestWhatPassedIsNotTakenBackByWhoAsksLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		health := server.NewHealth(
			server.Check{Name: "volume", Shown: true, Run: func(context.Context) error { <-release; return nil }},
			server.Check{Name: "redis", Run: func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }},
		)
		ask := func() { // each takes the second that the volume has
			if report := health.Report(t.Context()); !report.OK {
				t.Errorf("%+v", report)
			}
		}
		var asked sync.WaitGroup
		asked.Go(ask)
		time.Sleep(time.Second)
		asked.Go(ask) // while the first answer is fresh, as it is until 1.3 s
		time.Sleep(900 * time.Millisecond)
		asked.Go(ask) // which has Redis asked again, until 2.2 s
		asked.Wait()
		close(release)
	})
}

// healthy serves checks that pass or fail by name.
func healthy(t *testing.T, redis, volume error) (url string) {
	t.Helper()
	health := server.NewHealth(
		server.Check{Name: "redis", Now: func() error { return redis }},
		server.Check{Name: "volume", Shown: true, Now: func() error { return volume }},
	)
	srv := httptest.NewServer(documented(t, server.Config{Live: health, Ready: health, Metrics: telemetry.New().Handler()}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestHealthIsALineOrALineForEachCheckOrJSON(t *testing.T) {
	away, readOnly := errors.New("it does not answer"), errors.New("read-only file system")
	for name, tc := range map[string]struct {
		redis, volume error
		status        int
		line, verbose string
	}{
		"well":     {nil, nil, 200, "ok\n", "[+]redis ok\n[+]volume ok\nNAME check passed\n"},
		"hurt":     {nil, readOnly, 200, "ok\n", "[+]redis ok\n[!]volume failed, and is done without: read-only file system\nNAME check passed\n"},
		"not well": {away, readOnly, 503, "redis: it does not answer\n", "[-]redis failed: it does not answer\n[!]volume failed, and is done without: read-only file system\nNAME check failed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			url := healthy(t, tc.redis, tc.volume)
			for _, path := range []string{"livez", "readyz"} {
				if status, text := do(t, "GET", url+"/"+path, "", nil); status != tc.status || text != tc.line {
					t.Errorf("%s: %d %q, want %d %q", path, status, text, tc.status, tc.line)
				}
				want := strings.ReplaceAll(tc.verbose, "NAME", path)
				if status, text := do(t, "GET", url+"/"+path+"?verbose", "", nil); status != tc.status || text != want {
					t.Errorf("%s?verbose: %d %q, want %d %q", path, status, text, tc.status, want)
				}
				status, text := do(t, "GET", url+"/"+path, "", http.Header{"Accept": {"application/json"}})
				var report server.Report
				if err := json.Unmarshal([]byte(text), &report); err != nil || status != tc.status || report.OK != (status == 200) || len(report.Checks) != 2 {
					t.Errorf("%s as JSON: %d %s", path, status, text)
				}
			}
		})
	}
}
