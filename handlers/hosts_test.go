package handlers_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// limited is a limiter of the requests of the handlers, and those that it was asked for.
type limited struct {
	*hosts.Limiter
	mu    sync.Mutex
	asked []string   // hosts
	last  *hosts.Job // requests of the last job
}

// limitHosts returns a limiter, which the next jobs keep to.
func (w *world) limitHosts() *limited {
	w.t.Helper()
	l := &limited{}
	w.limits = l
	limiter, err := hosts.New(hosts.Config{
		Redis: w.server.Client(), Prefix: "lockstep:" + rand.Text() + ":",
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
	l.last = l.Job(change.Repo.Key(), change.Type == events.ChangeDue)
	w.t.Cleanup(func() { l.last.Leave(context.Background()) })
	return l.last
}

// block has a host refuse requests with a credential for a minute.
func (l *limited) block(w *world, target hosts.Target) {
	w.t.Helper()
	job := l.Job("acme/other", false)
	defer job.Leave(context.Background())
	done, err := job.With(target.Credential).Acquire(context.Background(), target.Host)
	must(w.t, err)
	done(wire.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"60"}}})
}

func isLimited(err error) bool {
	return events.ClassOf(err) == events.ClassBusy && events.DispositionOf(err) == events.Contention && events.RetryAfter(err) > 30*time.Second
}

var errLimited error = &events.Error{
	Disposition: events.Contention, Class: events.ClassBusy, RetryAfter: time.Minute, Err: errors.New("the host is limited"),
}

func TestRequestsAreLimited(t *testing.T) {
	w := newWorld(t)
	l := w.limitHosts()
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.env["LOCKSTEP_CREDENTIAL_CI_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_CI_URLS"] = "x", url
	job := w.job("1-0", events.Change{URL: url, Credential: "ci"})
	if _, err := w.try(job); err != nil {
		t.Fatal(err)
	}
	host := events.CanonicalHost(url)
	if want := []string{host, host}; !slices.Equal(l.asked, want) { // the list of refs, and a fetch
		t.Errorf("requests to %v, want %v", l.asked, want)
	}
	if targets := job.Requests.Targets(); !slices.Equal(targets, []hosts.Target{{Host: host, Credential: "ci"}}) {
		t.Errorf("targets %v", targets)
	}
}

func TestLimitedChangeIsReturned(t *testing.T) {
	w := newWorld(t)
	l := w.limitHosts()
	l.block(w, hosts.Target{Host: events.CanonicalHost(w.git.URL("x"))})
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for _, kind := range []events.ChangeType{events.ChangePushed, events.ChangeRemoved} {
		_, err := w.handlers.Handle(context.Background(), w.job("1-0", events.Change{Type: kind, URL: url}))
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
	changes := handlers.Changes{Namespace: events.DefaultNamespace, Limiter: l.Limiter, States: w.states, Watches: w.watches, Log: quiet(),
		Asked: func(url string) string { return strings.Replace(url, "written.example", "git.example", 1) }}
	main := mustRef("refs/heads/main")
	admitted := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for name, tc := range map[string]struct {
		change  events.Change
		needed  []hosts.Target // by the last sync of main
		refused bool
	}{
		"push, URL rewritten":        {events.Change{URL: "https://written.example.com/acme/widgets.git", Credential: "ci"}, nil, true},
		"push":                       {events.Change{URL: url, Credential: "ci"}, nil, true},
		"other credential":           {events.Change{URL: url}, nil, false},
		"other host":                 {events.Change{URL: other, Credential: "ci"}, nil, false},
		"over SSH":                   {events.Change{URL: "ssh://git@git.example.com/acme/widgets.git", Credential: "ci"}, nil, true},
		"removal":                    {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci"}, nil, true},
		"forced removal":             {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci", Force: true}, nil, false},
		"poll":                       {events.Change{Type: events.ChangeDue, Repo: repo}, nil, false},
		"other host, needs this one": {events.Change{URL: other, Ref: main}, []hosts.Target{{Host: "example.org"}, blocked}, true},
		"another ref needs this one": {events.Change{URL: other}, []hosts.Target{blocked}, false},
	} {
		w.redis.Del(t.Context(), events.DefaultNamespace.Repo(repo))
		var texts []string
		for _, target := range tc.needed {
			texts = append(texts, target.String())
		}
		must(t, w.redis.HSet(t.Context(), events.DefaultNamespace.Repo(repo), state.HostsField(main), strings.Join(texts, " ")).Err())
		change, err := events.NewChange(tc.change)
		must(t, err)
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

// TestOtherRefsDoNotWaitForHostsOfSubmodules has one ref with a submodule on another host, until nobody asks for it.
func TestOtherRefsDoNotWaitForHostsOfSubmodules(t *testing.T) {
	w := newWorld(t)
	w.limitHosts()
	other := newThief(t, http.NotFound)
	v, err := volume.OpenVolume(w.root, volume.Config{Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
	must(t, err)
	t.Cleanup(v.Close)
	w.handlers.Volume = v
	w.withSubmodule(other.URL + "/acme/lib.git")
	url, main := w.git.URL("acme/widgets"), mustRef("refs/heads/main")
	of := w.watchAs(watch.Watch{App: "parts", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesBestEffort})}, gitserver.Main)
	must(t, w.git.SetRef(t.Context(), "acme/widgets", "refs/heads/dev", w.git.Head("acme/widgets", "refs/heads/main")))
	w.watch("docs", "dev")
	needs := func(entry string, ref events.Ref, app, want string) {
		t.Helper()
		w.mustHandle(entry, events.Change{URL: url, Ref: ref, App: app, Watched: true})
		if got := testenv.Must(w.states.Hosts(t.Context(), w.repo(), ref))(t); got != want {
			t.Errorf("%s: needs %q, want %q", entry, got, want)
		}
	}
	needs("1-0", main, "parts", hosts.Target{Host: events.CanonicalHost(other.URL + "/x")}.String())
	needs("2-0", mustRef("refs/heads/dev"), "docs", "")
	w.watch("another", gitserver.Main)
	w.unwatch(of)
	needs("3-0", main, "another", "")
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
