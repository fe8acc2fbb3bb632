package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/telemetry"
)

// newLimiter returns limits of one request per host.
func newLimiter(t *testing.T, server *redistest.Server, observe func(string, hosts.Outcome, hosts.Reason)) *hosts.Limiter {
	t.Helper()
	l, err := hosts.New(hosts.Config{Redis: server.Client(), Prefix: string(events.DefaultNamespace), Limit: 1, Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ask sends a request, which stays in flight until the end of the test if it is not answered, and reports whether it may be sent.
func ask(t *testing.T, l *hosts.Limiter, host, repo, credential string, answer *wire.Answer) bool {
	t.Helper()
	job := l.Job(repo, false)
	t.Cleanup(func() { job.Leave(context.Background()) })
	done, err := job.With(credential).Acquire(t.Context(), host)
	if err != nil && events.ClassOf(err) != events.ClassBusy {
		t.Fatal(err)
	}
	if err == nil && answer != nil {
		done(*answer)
	}
	return err == nil
}

var tooMany = wire.Answer{Status: 429, Header: http.Header{"Retry-After": {"60"}}}

func TestHostRequestsAreCounted(t *testing.T) {
	m := telemetry.New()
	l := newLimiter(t, redistest.Start(t), m.HostRequests())
	unexport := m.Limiter(l.Load)
	ask(t, l, "git.example", "a/1", "app", &wire.Answer{Status: 200})
	ask(t, l, "git.example", "a/1", "app", &tooMany)
	for _, want := range []string{"a/1", "a/2"} {
		if ask(t, l, "git.example", want, "app", nil) {
			t.Errorf("%s may send a request", want)
		}
	}
	ask(t, l, "other.example", "a/1", "", nil)
	has(t, scrape(t, m), `lockstep_host_answers_total{host="git.example",outcome="ok"} 1`, `lockstep_host_answers_total{host="git.example",outcome="limited"} 1`,
		`lockstep_host_requests_refused_total{host="git.example",reason="rate_limit"} 2`,
		`lockstep_host_requests_in_flight{host="other.example"} 1`, `lockstep_host_requests_waiting{host="other.example"} 0`,
		`lockstep_host_requests_in_flight{host="git.example"} 0`)
	unexport()
	if strings.Contains(scrape(t, m), "lockstep_host_requests_in_flight") {
		t.Error("the load is still exported")
	}
}

func TestHostLabelsAreBounded(t *testing.T) {
	m := telemetry.New()
	observe := func(host string) { m.HostRequests()(host, hosts.OK, "") }
	observe("\xff.example") // url.Parse decodes %ff
	observe(strings.Repeat("x", 300))
	for n := range 150 {
		observe(fmt.Sprintf("h%d.example", n))
		observe("h0.example")
	}
	text := scrape(t, m)
	if n := strings.Count(text, "lockstep_host_answers_total{"); n != 101 {
		t.Errorf("%d series, want 101", n)
	}
	has(t, text, `lockstep_host_answers_total{host="other",outcome="ok"} 52`, `lockstep_host_answers_total{host="h0.example",outcome="ok"} 151`)
}

func TestHostGaugesAreCachedAndBounded(t *testing.T) {
	server := redistest.Start(t)
	l := newLimiter(t, server, nil)
	for n := range 105 { // idle
		ask(t, l, fmt.Sprintf("h%03d.example", n), "a/1", "", &wire.Answer{Status: 200})
	}
	ask(t, l, "limited.example", "a/1", "app", &tooMany)
	ask(t, l, "limited.example", "a/2", "app", nil)
	ask(t, l, "limited.example", "a/2", "another", nil)
	ask(t, l, "\xff.example", "a/1", "", nil)

	client := server.Client()
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	m := telemetry.New()
	m.ExportHosts(telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace)}))
	text := scrape(t, m)
	has(t, text, `lockstep_host_waiting{host="limited.example"} 2`, `lockstep_host_limited_credentials{host="limited.example"} 1`,
		`lockstep_host_blocked_seconds{host="h000.example"} 0`, `lockstep_host_waiting{host="other"} 0`)
	_, blocked, _ := strings.Cut(text, `lockstep_host_blocked_seconds{host="limited.example"} `)
	blocked, _, _ = strings.Cut(blocked, "\n")
	if left, err := strconv.ParseFloat(blocked, 64); err != nil || left <= 0 || left > 60 {
		t.Errorf("the block ends in %q seconds, want at most 60", blocked)
	}
	if n := strings.Count(text, "lockstep_host_waiting{"); n != 101 {
		t.Errorf("%d series, want 101", n)
	}
	first := trips.Load()
	scrape(t, m)
	if n := trips.Load(); n != first {
		t.Errorf("%d more round trips, want cached limits", n-first)
	}
}
