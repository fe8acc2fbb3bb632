package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/telemetry"
)

// newBudgets returns limits of one request per host.
func newBudgets(t *testing.T, server *redistest.Server, observer hosts.Observer) *hosts.Budgets {
	t.Helper()
	b, err := hosts.New(hosts.Config{
		Redis: server.Client(), Prefix: string(events.DefaultNamespace), Process: "w1", Limit: 1, Observer: observer,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask sends a request that is answered with status, and reports whether it got a permit.
func ask(t *testing.T, b *hosts.Budgets, host, repo, credential string, answer *hosts.Answer) bool {
	t.Helper()
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		t.Fatal(err)
	}
	permit, err := b.Enter(context.Background(), hosts.Request{Host: host, Credential: credential, Repo: path, Kind: hosts.Push})
	if _, limited := errors.AsType[*hosts.Limited](err); limited {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if answer != nil {
		permit.Done(context.Background(), *answer)
	}
	return true
}

var tooMany = hosts.Answer{Status: 429, Header: http.Header{"Retry-After": {"60"}}}

func TestHostRequestsAreCounted(t *testing.T) {
	m := telemetry.New()
	b := newBudgets(t, redistest.Start(t), m.HostRequests())
	ask(t, b, "git.example", "a/1", "app", &hosts.Answer{Status: 200})
	ask(t, b, "git.example", "a/1", "app", &tooMany)
	for _, want := range []string{"a/1", "a/2"} {
		if ask(t, b, "git.example", want, "app", nil) {
			t.Errorf("%s got a permit", want)
		}
	}
	ask(t, b, "other.example", "a/1", "", nil)
	ask(t, b, "other.example", "a/2", "", nil)
	has(t, scrape(t, m), `lockstep_host_requests_granted_total{host="git.example"} 2`,
		`lockstep_host_answers_total{host="git.example",outcome="ok"} 1`, `lockstep_host_answers_total{host="git.example",outcome="limited"} 1`,
		`lockstep_host_requests_refused_total{host="git.example",reason="rate_limit"} 2`,
		`lockstep_host_requests_granted_total{host="other.example"} 1`, `lockstep_host_requests_refused_total{host="other.example",reason="limit"} 1`)
}

func TestHostLabelsAreBounded(t *testing.T) {
	m := telemetry.New()
	observer := m.HostRequests()
	observer.Granted("\xff.example") // url.Parse decodes %ff
	observer.Granted(strings.Repeat("x", 300))
	for n := range 150 {
		observer.Granted(fmt.Sprintf("h%d.example", n))
		observer.Granted("h0.example")
	}
	text := scrape(t, m)
	if n := strings.Count(text, "lockstep_host_requests_granted_total{"); n != 101 {
		t.Errorf("%d series, want 101", n)
	}
	has(t, text, `lockstep_host_requests_granted_total{host="other"} 52`, `lockstep_host_requests_granted_total{host="h0.example"} 151`)
}

func TestHostGaugesAreCachedAndBounded(t *testing.T) {
	server := redistest.Start(t)
	b := newBudgets(t, server, nil)
	for n := range 105 { // idle
		ask(t, b, fmt.Sprintf("h%03d.example", n), "a/1", "", &hosts.Answer{Status: 200})
	}
	ask(t, b, "limited.example", "a/1", "app", &tooMany)
	ask(t, b, "limited.example", "a/2", "app", nil)
	ask(t, b, "busy.example", "a/1", "", nil)
	ask(t, b, "\xff.example", "a/1", "", nil)

	client := server.Client()
	trips := &redistest.RoundTrips{}
	client.AddHook(trips)
	m := telemetry.New()
	m.ExportHosts(telemetry.NewHosts(hosts.Reader{Redis: client, Prefix: string(events.DefaultNamespace), Limit: 1}))
	text := scrape(t, m)
	has(t, text, `lockstep_host_requests_limit{host="limited.example"} 1`, `lockstep_host_requests_in_flight{host="limited.example"} 0`,
		`lockstep_host_waiting{host="limited.example"} 1`, `lockstep_host_limited_credentials{host="limited.example"} 1`,
		`lockstep_host_requests_in_flight{host="busy.example"} 1`, `lockstep_host_blocked_seconds{host="busy.example"} 0`,
		`lockstep_host_requests_in_flight{host="other"} 1`)
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

func TestHostsWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	m := telemetry.New()
	m.ExportHosts(telemetry.NewHosts(hosts.Reader{Redis: server.Client(), Prefix: string(events.DefaultNamespace)}))
	server.Stop()
	if strings.Contains(scrape(t, m), "lockstep_host_") {
		t.Error("gauges of hosts are exported")
	}
}
