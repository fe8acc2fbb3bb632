package handlers_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// limited is a limiter of the requests of the handlers, and those that it was asked for.
type limited struct {
	*hosts.Limiter
	prefix string
	mu     sync.Mutex
	asked  []string // hosts
}

// credentials returns those that requests were sent with.
func (l *limited) credentials(w *world) map[string]bool {
	used := map[string]bool{}
	for _, name := range testenv.Must(w.redis.ZRange(w.t.Context(), l.prefix+"hosts", 0, -1).Result())(w.t) {
		target, _ := hosts.ParseTarget(name)
		used[target.Credential] = true
	}
	return used
}

// limitHosts returns a limiter, which the next jobs keep to.
func (w *world) limitHosts() *limited {
	w.t.Helper()
	l := &limited{prefix: "lockstep:" + rand.Text() + ":"}
	w.limits = l
	limiter, err := hosts.New(hosts.Config{
		Redis: w.server.Client(), Prefix: l.prefix,
		Observe: func(host string, o hosts.Outcome, _ hosts.Reason) {
			if o == "" {
				return
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.asked = append(l.asked, host)
		},
	})
	must(w.t, err)
	l.Limiter = limiter
	return l
}

// requests returns those of a job, until the end of the test.
func (l *limited) requests(w *world, change events.Change) *hosts.Job {
	job := l.Job(change.Repo.Key(), change.Type == events.ChangeDue)
	w.t.Cleanup(func() { job.Leave(context.Background()) })
	return job
}

// block has a host refuse requests with a credential for a minute.
func (l *limited) block(w *world, target hosts.Target) {
	w.t.Helper()
	job := l.Job("acme/other", false)
	defer job.Leave(context.Background())
	done := testenv.Must(job.With(target.Credential).Acquire(context.Background(), target.Host))(w.t)
	done(wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"60"}}})
}

func isLimited(err error) bool {
	return events.ClassOf(err) == events.ClassBusy && events.DispositionOf(err) == events.Contention && events.RetryAfter(err) > 30*time.Second
}

// TestChangeWaitsBeforeItsLease has a host limit a credential.
func TestChangeWaitsBeforeItsLease(t *testing.T) {
	w := newWorld(t)
	l := w.limitHosts()
	blocked := hosts.Target{Host: "git.example.com", Credential: "ci"}
	l.block(w, blocked)
	const url, other = "https://Git.Example.com:443/acme/widgets.git", "https://example.org/acme/widgets"
	repo, err := events.ParseRepoPath("acme/widgets")
	must(t, err)
	changes := handlers.Changes{Namespace: events.DefaultNamespace, Limiter: l.Limiter, Watches: w.watches, Log: quiet(),
		Asked: func(url string) string { return strings.Replace(url, "written.example", "git.example", 1) }}
	admitted := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for name, tc := range map[string]struct {
		change  events.Change
		refused bool
	}{
		"push, URL rewritten": {events.Change{URL: "https://written.example.com/acme/widgets.git", Credential: "ci"}, true},
		"push":                {events.Change{URL: url, Credential: "ci"}, true},
		"other credential":    {events.Change{URL: url}, false},
		"other host":          {events.Change{URL: other, Credential: "ci"}, false},
		"over SSH":            {events.Change{URL: "ssh://git@git.example.com/acme/widgets.git", Credential: "ci"}, true},
		"removal":             {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci"}, true},
		"forced removal":      {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci", Force: true}, false},
		"poll":                {events.Change{Type: events.ChangeDue, Repo: repo}, false},
	} {
		change := testenv.Must(events.NewChange(tc.change))(t)
		document, err := json.Marshal(change)
		must(t, err)
		changes.Limiter = l.Limiter
		if _, err = changes.Limit(admitted)(message.NewMessage("1", document)); (err != nil) != tc.refused || tc.refused && !isLimited(err) {
			t.Errorf("%s: %v", name, err)
		}
		changes.Limiter = nil
		if _, err := changes.Limit(admitted)(message.NewMessage("1", document)); err != nil {
			t.Errorf("%s, without limits: %v", name, err)
		}
	}
	changes.Limiter = l.Limiter
	poll := testenv.Must(json.Marshal(testenv.Must(events.NewChange(events.Change{Type: events.ChangeDue, Repo: repo}))(t)))(t)
	for _, app := range []string{"a", "b"} {
		w.watchAs(watch.Watch{App: app, URL: url, Credential: map[string]string{"a": "ci"}[app]}, "")
		if _, err := changes.Limit(admitted)(message.NewMessage("1", poll)); (err != nil) != (app == "a") {
			t.Errorf("poll with the credential of %s: %v", app, err)
		}
	}
	if _, err := changes.Limit(admitted)(message.NewMessage("1", []byte("{"))); err != nil {
		t.Errorf("a malformed message: %v; want it left to Request", err)
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
		l := w.limitHosts()
		for _, credential := range limited {
			l.block(w, hosts.Target{Host: events.CanonicalHost(url), Credential: credential})
		}
		_, err := w.handlers.Handle(context.Background(), w.job("1-0", events.Change{Type: events.ChangeDue, Repo: w.repo()}))
		if isAll := len(limited) == 2; isLimited(err) != isAll || (err != nil) != isAll {
			t.Errorf("%s limited: %v", limited, err)
		}
	}
}
