package handlers_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/watch"
)

// hostLog admits requests unless refuse says otherwise, and records them.
type hostLog struct {
	mu       sync.Mutex
	refuse   func(req handlers.HostRequest) error
	requests []handlers.HostRequest
	answers  []handlers.HostAnswer
	left     int
}

func (h *hostLog) Enter(_ context.Context, req handlers.HostRequest) (handlers.HostPermit, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, req)
	if h.refuse != nil {
		if err := h.refuse(req); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *hostLog) Done(_ context.Context, a handlers.HostAnswer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers = append(h.answers, a)
	return nil
}

func (h *hostLog) Leave(context.Context, events.RepoPath) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left++
}

var errLimited error = &events.Error{
	Disposition: events.Contention, Class: events.ClassLimited, RetryAfter: time.Minute, Err: errors.New("the host is limited"),
}

func TestHostLearnsWhoAsks(t *testing.T) {
	w := newWorld(t)
	hosts := &hostLog{}
	w.handlers.Hosts = hosts
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.env["LOCKSTEP_CREDENTIAL_CI_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_CI_URLS"] = "x", url
	job := w.job("1-0", events.Change{URL: url, Credential: "ci"})
	again := w.job("2-0", events.Change{URL: url})
	again.Attempt = 2
	requested := w.job("3-0", events.Change{URL: url})
	requested.Change.ID = "poll/9-0/1"
	for i, tc := range []struct {
		job  events.Job
		kind handlers.HostKind
	}{{job, handlers.HostPush}, {again, handlers.HostRetry}, {requested, handlers.HostPoll}} {
		hosts.requests, hosts.answers = nil, nil
		if _, err := w.handlers.Handle(context.Background(), tc.job); err != nil {
			t.Fatal(err)
		}
		want := handlers.HostRequest{
			Host: events.CanonicalHost(url), Credential: tc.job.Change.Credential, Repo: tc.job.Change.Repo, Kind: tc.kind,
		}
		wants := []handlers.HostRequest{want}
		if i == 0 {
			wants = append(wants, want) // the list of refs, and the first clone
		}
		if !slices.Equal(hosts.requests, wants) || len(hosts.answers) != len(wants) {
			t.Errorf("requests %+v, %d answers; want %+v", hosts.requests, len(hosts.answers), wants)
		}
	}
}

func TestLimitedChangeIsReturned(t *testing.T) {
	w := newWorld(t)
	w.handlers.Hosts = &hostLog{refuse: func(handlers.HostRequest) error { return errLimited }}
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for _, kind := range []events.ChangeType{events.ChangePushed, events.ChangeRemoved} {
		_, err := w.handle("1-0", events.Change{Type: kind, URL: url})
		if kind == events.ChangeRemoved && err == nil { // nothing is on the volume, so the remote is not contacted
			continue
		}
		if !errors.Is(err, errLimited) || events.DispositionOf(err) != events.Contention || events.RetryAfter(err) != time.Minute {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if n := w.git.Stats("acme/widgets").InfoRefs; n != 0 {
		t.Errorf("the remote was contacted %d times", n)
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
	for limited, want := range map[string]error{"one": nil, "two": nil, "both": errLimited} {
		w.handlers.Hosts = &hostLog{refuse: func(req handlers.HostRequest) error {
			if limited == "both" || limited == req.Credential {
				return errLimited
			}
			return nil
		}}
		_, err := w.outcome("1-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s limited: %v, want %v", limited, err, want)
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

// TestNoSlotIsHeldWhileRemoteHangs handles a change of a remote that hangs and one of another remote, with one slot.
