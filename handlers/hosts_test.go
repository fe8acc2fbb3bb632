package handlers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/hosts"
	"lockstep/internal/watch"
)

// requestLog records which requests [hosts.Budgets] admits, by the script that does.
type requestLog struct {
	mu       sync.Mutex
	requests []hosts.Request
}

func (l *requestLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *requestLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *requestLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		const firstArg, keys = 3, 3
		args := cmd.Args()
		if err != nil || len(args) < firstArg+keys+6 {
			return err
		}
		args = args[firstArg+keys+2:] // host, credential, then of enter.lua the kind and the repository
		text := func(i int) string { s, _ := args[i].(string); return s }
		l.mu.Lock()
		defer l.mu.Unlock()
		switch kind := hosts.Kind(text(2)); kind {
		case hosts.Push, hosts.Retry, hosts.Poll:
			host, _ := url.QueryUnescape(text(0))
			repo, _ := events.ParseRepoPath(text(3))
			l.requests = append(l.requests, hosts.Request{Host: host, Credential: text(1), Repo: repo, Kind: kind})
		}
		return nil
	}
}

// all returns the requests since the last call.
func (l *requestLog) all() []hosts.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.requests = nil }()
	return l.requests
}

// limitHosts limits the requests of the handlers, and returns those that are admitted.
func (w *world) limitHosts() *requestLog {
	w.t.Helper()
	client, log := w.server.Client(), &requestLog{}
	client.AddHook(log)
	budgets, err := hosts.New(hosts.Config{Redis: client, Prefix: "lockstep:" + rand.Text() + ":", Process: "p"})
	must(w.t, err)
	w.handlers.Hosts = budgets
	return log
}

// block has the host of the Git server refuse requests with a credential for a minute.
func (w *world) block(credential string) {
	w.t.Helper()
	req := hosts.Request{Host: events.CanonicalHost(w.git.URL("x")), Credential: credential, Repo: path(w.t, "acme/other"), Kind: hosts.Push}
	permit, err := w.handlers.Hosts.Enter(context.Background(), req)
	must(w.t, err)
	permit.Done(context.Background(), hosts.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"60"}}})
}

func isLimited(err error) bool {
	return events.ClassOf(err) == events.ClassLimited && events.DispositionOf(err) == events.Contention && events.RetryAfter(err) > 30*time.Second
}

var errLimited error = &events.Error{
	Disposition: events.Contention, Class: events.ClassLimited, RetryAfter: time.Minute, Err: errors.New("the host is limited"),
}

func TestHostLearnsWhoAsks(t *testing.T) {
	w := newWorld(t)
	requests := w.limitHosts()
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.env["LOCKSTEP_CREDENTIAL_CI_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_CI_URLS"] = "x", url
	job := w.job("1-0", events.Change{URL: url, Credential: "ci"})
	again := w.job("2-0", events.Change{URL: url})
	again.Attempt = 2
	requested := w.job("3-0", events.Change{URL: url})
	requested.Change.ID = "poll/9-0/1"
	for _, tc := range []struct {
		job  handlers.Job
		kind hosts.Kind
	}{{job, hosts.Push}, {again, hosts.Retry}, {requested, hosts.Poll}} {
		if _, err := w.try(tc.job); err != nil {
			t.Fatal(err)
		}
		// The permit of the first clone is kept from its list of refs.
		want := []hosts.Request{{
			Host: events.CanonicalHost(url), Credential: tc.job.Change.Credential, Repo: tc.job.Change.Repo, Kind: tc.kind,
		}}
		if got := requests.all(); !slices.Equal(got, want) {
			t.Errorf("requests %+v, want %+v", got, want)
		}
	}
}

func TestLimitedChangeIsReturned(t *testing.T) {
	w := newWorld(t)
	w.limitHosts()
	w.block("")
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for _, kind := range []events.ChangeType{events.ChangePushed, events.ChangeRemoved} {
		_, err := w.handle("1-0", events.Change{Type: kind, URL: url})
		if kind == events.ChangeRemoved && err == nil { // nothing is on the volume, so the remote is not contacted
			continue
		}
		if !isLimited(err) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if n := w.git.Stats("acme/widgets").InfoRefs; n != 0 {
		t.Errorf("the remote was contacted %d times", n)
	}
	job := w.job("2-0", events.Change{URL: url})
	if err := w.handlers.Limited(events.CanonicalHost(url), job); !isLimited(err) {
		t.Errorf("before the lease: %v", err)
	}
	if err := w.handlers.Limited("elsewhere.example", job); err != nil {
		t.Errorf("another host: %v", err)
	}
}

// TestPollUsesCredentialThatIsNotLimited polls with two watches, one or both of whose credentials are limited.
func TestPollUsesCredentialThatIsNotLimited(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for _, name := range []string{"ONE", "TWO"} {
		w.env["LOCKSTEP_CREDENTIAL_"+name+"_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_"+name+"_URLS"] = "x", url
	}
	w.watchAs(watch.Watch{App: "a", URL: url, Credential: "one"}, "")
	w.watchAs(watch.Watch{App: "b", URL: url, Credential: "two"}, "")
	for _, limited := range [][]string{{"one"}, {"two"}, {"one", "two"}} {
		w.limitHosts()
		for _, credential := range limited {
			w.block(credential)
		}
		_, err := w.outcome("1-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
		if isAll := len(limited) == 2; isLimited(err) != isAll || (err != nil) != isAll {
			t.Errorf("%s limited: %v", limited, err)
		}
	}
}

func TestLimitDoesNotOpenCircuit(t *testing.T) {
	g := newGauntlet(t)
	for range 3 {
		if err := g.run(errLimited); !errors.Is(err, errLimited) || events.RetryAfter(err) != time.Minute {
			t.Fatal(err)
		}
	}
	if c := g.circuit(); c.Failures != 0 || c.Trips != 0 {
		t.Errorf("circuit %+v", c)
	}
}

func mustReceive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("no %s after a minute", what)
		panic("unreachable")
	}
}
