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

// runChecks runs the checks, of which the given ones fail. marks has a character per check: + passed, - failed, ! failed
// but not critical.
func runChecks(checks []server.Check, failing ...string) (ok bool, marks string) {
	for i := range checks {
		name := checks[i].Name
		checks[i].Now = func() error {
			if slices.Contains(failing, name) {
				return errors.New("failure for the test")
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

func TestCriticalFailures(t *testing.T) {
	t.Parallel()
	receiver := func() []server.Check {
		return []server.Check{{Name: "redis", Alternative: "spool"}, {Name: "spool", Alternative: "redis"}, {Name: "changes", DependsOn: "redis"}, {Name: "volume", NonCritical: true}}
	}
	for name, tc := range map[string]struct {
		failing []string
		ok      bool
		marks   string
	}{
		"no failure":                           {nil, true, "++++"},
		"one of two alternatives":              {[]string{"redis"}, true, "!+++"},
		"the other alternative":                {[]string{"spool"}, true, "+!++"},
		"both alternatives":                    {[]string{"redis", "spool"}, false, "--++"},
		"a dependent check":                    {[]string{"changes"}, false, "++-+"},
		"a dependent check and its dependency": {[]string{"redis", "changes"}, true, "!+!+"},
		"all but the non-critical check":       {[]string{"redis", "spool", "changes"}, false, "--!+"},
		"a non-critical check":                 {[]string{"volume"}, true, "+++!"},
	} {
		t.Run(name, func(t *testing.T) {
			if ok, marks := runChecks(receiver(), tc.failing...); ok != tc.ok || marks != tc.marks {
				t.Errorf("%t %s, want %t %s", ok, marks, tc.ok, tc.marks)
			}
		})
	}
	if ok, _ := runChecks([]server.Check{{Name: "redis", Alternative: "spool"}}, "redis"); ok {
		t.Error("a missing alternative counts as passed")
	}
}

func TestChecksAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		health := server.NewHealth(server.Check{Name: "redis", Run: func(context.Context) error {
			runs.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}})
		for range 2 {
			var requests sync.WaitGroup
			for range 50 {
				requests.Go(func() {
					if !health.Report(t.Context()).OK {
						t.Error("not ok")
					}
				})
			}
			requests.Wait()
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs for concurrent requests, want 1", n)
		}
		time.Sleep(2 * time.Second)
		health.Report(t.Context())
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs after the result expired, want 2", n)
		}
	})
}

func TestHangingCheckTimesOutAndRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var runs atomic.Int32
		health := server.NewHealth(
			server.Check{Name: "volume", Run: func(context.Context) error { runs.Add(1); <-release; return nil }},
			server.Check{Name: "redis", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("it does not answer") }},
		)
		for range 5 {
			start := time.Now()
			report := health.Report(t.Context())
			if took := time.Since(start); took > time.Second || report.OK || report.Checks[0].Reason != "no answer within a second" || report.Checks[1].OK {
				t.Errorf("%+v after %v", report, took)
			}
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d goroutines hang, want 1", n)
		}
		close(release)
		synctest.Wait()
		if report := health.Report(t.Context()); !report.Checks[0].OK {
			t.Errorf("after the check has ended: %+v", report)
		}
	})
}

// serveHealth serves two checks with the given errors.
func serveHealth(t *testing.T, redis, volume error) (url string) {
	t.Helper()
	health := server.NewHealth(
		server.Check{Name: "redis", Now: func() error { return redis }},
		server.Check{Name: "volume", NonCritical: true, Now: func() error { return volume }},
	)
	srv := httptest.NewServer(documented(t, server.Config{Live: health, Ready: health, Metrics: telemetry.New().Handler()}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestHealthFormats(t *testing.T) {
	t.Parallel()
	away, readOnly := errors.New("it does not answer"), errors.New("read-only file system")
	for name, tc := range map[string]struct {
		redis, volume error
		status        int
		line, verbose string
	}{
		"passed":               {nil, nil, 200, "ok\n", "[+]redis ok\n[+]volume ok\nNAME check passed\n"},
		"non-critical failure": {nil, readOnly, 200, "ok\n", "[+]redis ok\n[!]volume failed (non-critical): read-only file system\nNAME check passed\n"},
		"critical failure":     {away, readOnly, 503, "redis: it does not answer\n", "[-]redis failed: it does not answer\n[!]volume failed (non-critical): read-only file system\nNAME check failed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			url := serveHealth(t, tc.redis, tc.volume)
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
