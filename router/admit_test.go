package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/locking"
	"lockstep/router"
)

var errLimited error = &events.Error{
	Disposition: events.Contention, Class: events.ClassLimited, RetryAfter: time.Millisecond, Err: errors.New("the host is limited"),
}

// noLocks fails the test if a message asks for a lock.
type noLocks struct{ t *testing.T }

func (l noLocks) AcquireAll(context.Context, ...locking.Request) (locking.Leases, error) {
	l.t.Error("a lock was requested")
	return nil, locking.ErrClosed
}

func TestRefusedMessageAcquiresNothing(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	refused := make(chan struct{}, 100)
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client), Locker: noLocks{t}, Request: byPayload,
		Handler: func(*message.Message) ([]*message.Message, error) {
			t.Error("the handler was called")
			return nil, nil
		},
		Admit: func(*message.Message) error {
			refused <- struct{}{}
			return errLimited
		},
		Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{MaxAttempts: 1}},
	})
	publishTo(t, newPublisher(t, client), topic, "1", []byte("k"))
	for range 10 { // more often than its attempts
		within(t, refused, "delivery")
	}
	if n := client.XLen(context.Background(), events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestChangesOfLimitedHost(t *testing.T) {
	t.Parallel()
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	const url = "https://Git.Example.com:443/acme/widgets.git"
	for name, tc := range map[string]struct {
		change  events.Change
		refused bool
		dispose events.Disposition
	}{
		"push":             {events.Change{URL: url, Credential: "ci"}, true, events.Contention},
		"other credential": {events.Change{URL: url}, false, 0},
		"other host":       {events.Change{URL: "https://example.org/acme/widgets", Credential: "ci"}, false, 0},
		"over SSH":         {events.Change{URL: "ssh://git@git.example.com/acme/widgets.git", Credential: "ci"}, true, events.Contention},
		"removal":          {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci"}, true, events.Contention},
		"forced removal":   {events.Change{Type: events.ChangeRemoved, URL: url, Credential: "ci", Force: true}, false, 0},
		"poll":             {events.Change{Type: events.ChangeDue, Repo: repo}, false, 0},
	} {
		changes := router.Changes{Log: quiet(), Limited: func(host string, job events.Job) error {
			if host == "git.example.com" && job.Change.Credential == "ci" {
				return errLimited
			}
			return nil
		}}
		change, err := events.NewChange(tc.change)
		if err != nil {
			t.Fatal(err)
		}
		document, err := json.Marshal(change)
		if err != nil {
			t.Fatal(err)
		}
		err = changes.Admit(message.NewMessage("1", document))
		if (err != nil) != tc.refused || tc.refused && (events.DispositionOf(err) != tc.dispose || events.ClassOf(err) != events.ClassLimited) {
			t.Errorf("%s: %v", name, err)
		}
		changes.Limited = nil
		if err := changes.Admit(message.NewMessage("1", document)); err != nil {
			t.Errorf("%s, without limits: %v", name, err)
		}
	}
	if err := (&router.Changes{Limited: func(string, events.Job) error { return errLimited }}).Admit(message.NewMessage("1", []byte("{"))); err != nil {
		t.Errorf("a malformed message: %v; want it left to Request", err)
	}
}
