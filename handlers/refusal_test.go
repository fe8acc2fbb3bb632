package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lockstep/events"
)

// given records that an app was given something.
func (g *gauntlet) given(app string) {
	g.t.Helper()
	must(g.t, g.client.HSet(context.Background(), events.DefaultNamespace.Repo(g.job.Change.Repo), "given:refs/heads/main:"+app, "c1").Err())
}

var errRefused = events.Errorf(events.Permanent, events.ClassAuth, "refused")

// TestAccessEndsOnceARefusalIsConfirmed asks the remote with the credential "one" of the app docs, which was given something, unless a step
// says otherwise.
func TestAccessEndsOnceARefusalIsConfirmed(t *testing.T) {
	const wait, settles, works = events.Contention, events.Permanent, events.Malformed // what is expected of an attempt
	hidden := &events.Error{Disposition: events.Permanent, Scope: events.ScopeCredential, Class: events.ClassNotFound, Err: errors.New("hidden")}
	minted := events.WithScope(events.Errorf(events.Retryable, events.ClassAuth, "will retry with a new token"), events.ScopeCredential)
	as := func(app, credential string) func(*gauntlet) {
		return func(g *gauntlet) { g.job.Change.App, g.job.Change.Credential = app, credential }
	}
	type step struct {
		after  time.Duration
		answer error
		want   events.Disposition
		next   time.Duration
		denied bool // docs' access with "one" has ended
		before func(*gauntlet)
	}
	for name, steps := range map[string][]step{
		"refused throughout": {
			{0, errRefused, wait, 10 * time.Second, false, nil}, {10 * time.Second, errRefused, wait, time.Minute, false, nil},
			{time.Minute, errRefused, wait, 5 * time.Minute, false, nil}, {5 * time.Minute, errRefused, settles, 0, true, nil},
			{time.Second, errRefused, settles, 0, true, nil}, {time.Second, nil, works, 0, false, nil},
			{time.Second, errRefused, wait, 10 * time.Second, false, nil},
		},
		"for some seconds": {{0, errRefused, wait, 10 * time.Second, false, nil}, {10 * time.Second, nil, works, 0, false, nil}},
		"accepted in between": {
			{0, errRefused, wait, 10 * time.Second, false, nil}, {10 * time.Second, nil, works, 0, false, nil},
			{6 * time.Minute, errRefused, wait, 10 * time.Second, false, nil},
		},
		"hidden, then refused": {{0, hidden, wait, 10 * time.Second, false, nil}, {6 * time.Minute, errRefused, settles, 0, true, nil}},
		"a network error in between": {
			{0, errRefused, wait, 10 * time.Second, false, nil}, {10 * time.Second, errServer, events.Retryable, 0, false, nil},
			{6 * time.Minute, errRefused, settles, 0, true, nil},
		},
		"a refused commit in between, which the remote has sent": {
			{0, errRefused, wait, 10 * time.Second, false, nil},
			{10 * time.Second, nil, works, 0, false, func(g *gauntlet) { g.result = events.Result{Type: events.ResultFailed, Class: events.ClassRefused} }},
			{6 * time.Minute, errRefused, wait, 10 * time.Second, false, nil},
		},
		"a minted token, minted anew": {
			{0, minted, wait, 10 * time.Second, false, nil}, {10 * time.Second, minted, wait, time.Minute, false, nil},
			{6 * time.Minute, minted, settles, 0, true, nil},
		},
		"another app's success": {
			{0, errRefused, wait, 10 * time.Second, false, nil}, {time.Second, nil, works, 0, false, as("scan", "one")},
			{6 * time.Minute, errRefused, settles, 0, true, as("docs", "one")},
		},
		"another credential's success": {
			{0, errRefused, wait, 10 * time.Second, false, nil}, {time.Second, nil, works, 0, false, as("docs", "two")},
			{6 * time.Minute, errRefused, settles, 0, true, as("docs", "one")},
		},
		"another app's refusal": {
			{0, errRefused, settles, 0, false, as("scan", "one")}, {6 * time.Minute, errRefused, wait, 10 * time.Second, false, as("docs", "one")},
		},
		"Redis returns without the record": {
			{0, errRefused, wait, 10 * time.Second, false, nil},
			{6 * time.Minute, errRefused, wait, 10 * time.Second, false, func(g *gauntlet) {
				must(g.t, g.client.HDel(context.Background(), events.DefaultNamespace.Repo(g.job.Change.Repo), "trouble").Err())
			}},
			{6 * time.Minute, errRefused, settles, 0, true, nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			g.given("docs")
			g.job.Attempt = 9 // the last: a refusal is no failed attempt
			for n, s := range steps {
				if s.before != nil {
					s.before(g)
				}
				g.now = g.now.Add(s.after)
				err := g.run(s.answer)
				got, next := events.DispositionOf(err), events.RetryAfter(err)
				if err == nil {
					got = works
				}
				if got != s.want || s.next != 0 && next != s.next || !errors.Is(err, s.answer) {
					t.Errorf("step %d: %v, %v, next after %v; want %v, next after %v", n+1, err, got, next, s.want, s.next)
				}
				if denied := g.known().Denied("docs", "one"); denied != s.denied {
					t.Errorf("step %d: access has ended: %v, want %v", n+1, denied, s.denied)
				}
				if refused := g.known().IsRefused("docs", "one"); s.denied && !refused || g.job.Change.App == "docs" && s.want == wait && !refused {
					t.Errorf("step %d: nothing says that the app must be given nothing new", n+1)
				}
			}
		})
	}
}

// TestRefusalsOfManyRefsAreOne has 50 refs of an app refused, at each of its attempts.
func TestRefusalsOfManyRefsAreOne(t *testing.T) {
	g := newGauntlet(t)
	g.given("docs")
	for n, after := range []time.Duration{0, 10 * time.Second, time.Minute} {
		g.now = g.now.Add(after)
		for ref := range 50 {
			g.job.Change.Ref = mustRef(fmt.Sprint("refs/heads/", ref))
			if err := g.run(errRefused); events.DispositionOf(err) != events.Contention {
				t.Fatalf("ref %d: %v", ref, err)
			}
		}
		if failing, _ := g.known().Failing(); g.calls != n+1 || len(failing) != 1 || failing[0].Failures != n+1 {
			t.Errorf("after attempt %d the remote was asked %d times: %+v", n+1, g.calls, failing)
		}
	}
	g.now = g.now.Add(5 * time.Minute)
	if err := g.run(errRefused); events.DispositionOf(err) != events.Permanent {
		t.Errorf("%v, want it confirmed", err)
	}
}
