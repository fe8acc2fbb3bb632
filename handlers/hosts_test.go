package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
	"lockstep/router"
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
		job  handlers.Job
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
func TestNoSlotIsHeldWhileRemoteHangs(t *testing.T) {
	hung, release := make(chan struct{}), make(chan struct{})
	w := newWorld(t)
	slow, err := gitserver.Start(filepath.Join(t.TempDir(), "slow"), gitserver.WithBefore(func(ctx context.Context, _, service string) {
		if service == "info/refs" {
			close(hung)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	if _, err := slow.Create(context.Background(), "acme/slow", map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	w.create(map[string]string{"a": "1"})
	w.handlers.Hosts = &hostLog{}
	slots := router.NewSlots(1)
	handle := func(url string) <-chan error {
		job := w.job("1-0", events.Change{URL: url})
		changes := handlers.Changes{Log: slog.New(slog.DiscardHandler), Handler: func(ctx context.Context, routed handlers.Job) (handlers.Outcome, error) {
			routed.Fence = job.Fence
			return w.handlers.Handle(ctx, routed)
		}}
		document, err := json.Marshal(job.Change)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := slots.Middleware(changes.Handle)(message.NewMessage(job.Change.ID, document))
			ended <- err
		}()
		return ended
	}
	first := handle(slow.URL("acme/slow"))
	mustReceive(t, hung, "request to the slow remote")

	if err := mustReceive(t, handle(w.git.URL("acme/widgets")), "end of the change of the other remote"); err != nil {
		t.Fatal(err)
	}

	select {
	case err := <-first:
		t.Errorf("the slow remote has answered: %v", err)
	default:
	}
	close(release)
	if err := mustReceive(t, first, "end of the slow change"); err != nil {
		t.Error(err)
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
