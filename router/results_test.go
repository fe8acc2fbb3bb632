package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/locking"
	"lockstep/router"
)

func resultOf(t *testing.T, id, repo string) []byte {
	t.Helper()
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(events.Result{ID: id, Type: events.ResultSynced, Source: "/lockstep/worker/w1", Repo: path, After: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// endings is told how deliveries ended that do not come again.
type endings chan stream.Outcome

func (endings) Delivered(string, int, int) {}
func (endings) Lapsed(string, string)      {}
func (e endings) Finished(_ string, outcome stream.Outcome, _ time.Duration) {
	if outcome != stream.Nacked && outcome != stream.Deferred {
		e <- outcome
	}
}

// follower subscribes to results with a consumer group of its own.
func follower(t *testing.T, server *redistest.Server, group string, ended endings) *stream.Subscriber {
	t.Helper()
	sub, err := stream.NewSubscriber(stream.SubscriberConfig{Redis: server.Client(), Reader: server.Client(), Prefix: prefix,
		Group: group, Grace: time.Second, Log: quiet(), Observer: ended})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

func TestEachResultEndsAsItsHandlerSays(t *testing.T) {
	synced := resultOf(t, "r1", "acme/widgets")
	later := []byte(strings.Replace(string(synced), "synced.v1", "synced.v2", 1))
	for name, tc := range map[string]struct {
		payload []byte
		errs    []error // of the handler's calls, in order
		dead    string
	}{
		"handled": {synced, []error{nil}, ""},
		"retryable, once": {
			synced, []error{errors.New("a hiccup"), nil}, "",
		},
		"retryable, for ever": {
			synced, []error{errors.New("no"), errors.New("no"), errors.New("no")}, "attempts used up",
		},
		"contention, more often than there are attempts": {
			synced, append(slices.Repeat([]error{events.Errorf(events.Contention, events.ClassBusy, "later")}, 5), nil), "",
		},
		"permanent":              {synced, []error{events.Errorf(events.Permanent, events.ClassNotFound, "no such index")}, ""},
		"of a later version":     {later, nil, ""},
		"of an unknown type":     {[]byte(`{"specversion":"1.0","id":"r1","type":"lockstep.result.mirrored.v1","data":[]}`), nil, ""},
		"not JSON":               {[]byte("hello"), nil, "malformed"},
		"plain fields":           {[]byte(`{"repo":"acme/widgets","type":"lockstep.result.synced.v1"}`), nil, "malformed"},
		"a change":               {changeOf(t, "c1", "acme/widgets"), nil, "malformed"},
		"a path out of the tree": {[]byte(strings.Replace(string(synced), `"after":"c1"`, `"tree":"../../etc"`, 1)), nil, "malformed"},
	} {
		for _, locked := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", locked"}[locked], func(t *testing.T) {
				server, ended := redistest.Start(t), make(endings, 1)
				client := server.Client()
				var mu sync.Mutex
				var got []string
				results := router.Results{Log: quiet(), Handler: func(ctx context.Context, r events.Result) error {
					mu.Lock()
					defer mu.Unlock()
					if lease, held := locking.FromContext(ctx); held != locked || held && lease.Key() != "acme/widgets" {
						t.Errorf("lease held: %t", held)
					}
					got = append(got, r.ID)
					if len(got) > len(tc.errs) {
						return nil
					}
					return tc.errs[len(got)-1]
				}}
				route := router.Route{Name: "index", Topic: events.DefaultNamespace.Results(), Subscriber: follower(t, server, "index", ended),
					Handler: results.Handle, Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{MaxAttempts: 3, Base: time.Millisecond}}}
				if locked {
					route.Locker, route.Request = newLocker(t, client, 5*time.Second), results.Request
				}
				run(t, route)
				publishTo(t, newPublisher(t, client), route.Topic, "m1", tc.payload)
				want := stream.Settled
				if tc.dead != "" {
					want = stream.Dead
				}
				if outcome := within(t, ended, "end of the delivery"); outcome != want {
					t.Errorf("the delivery was %s; want %s", outcome, want)
				}
				mu.Lock()
				defer mu.Unlock()
				if want := slices.Repeat([]string{"r1"}, len(tc.errs)); !slices.Equal(got, want) {
					t.Errorf("handled %q; want %q", got, want)
				}
				dead := client.XRange(context.Background(), events.DefaultNamespace.Dead(), "-", "+").Val()
				if tc.dead == "" && len(dead) != 0 || tc.dead != "" && (len(dead) != 1 || dead[0].Values["reason"] != tc.dead) {
					t.Errorf("dead letters %v; want reason %q", dead, tc.dead)
				}
			})
		}
	}
}

func TestEachGroupIsGivenEveryResult(t *testing.T) {
	server := redistest.Start(t)
	pub := newPublisher(t, server.Client())
	var routes []router.Route
	var done []*signal
	for _, group := range []string{"index", "notify"} {
		handled := newSignal(3)
		done = append(done, handled)
		results := router.Results{Log: quiet(), Handler: func(context.Context, events.Result) error { handled.one(); return nil }}
		routes = append(routes, router.Route{Name: group, Topic: events.DefaultNamespace.Results(), Subscriber: follower(t, server, group, make(endings, 3)),
			Handler: results.Handle, Dispose: router.Disposer{Log: quiet()}})
	}
	publishTo(t, pub, routes[0].Topic, "m1", resultOf(t, "r1", "acme/widgets")) // before anybody follows
	run(t, routes...)
	publishTo(t, pub, routes[0].Topic, "m2", resultOf(t, "r2", "acme/widgets"))
	publishTo(t, pub, routes[0].Topic, "m3", resultOf(t, "r3", "acme/gadgets"))
	for _, handled := range done {
		within(t, handled.all, "end of all results")
	}
}

func TestAFollowerHandlesOneResultPerKey(t *testing.T) {
	for name, by := range map[string]func(events.Result) string{
		"the repository": nil,
		"its owner":      func(r events.Result) string { owner, _, _ := strings.Cut(r.Repo.Key(), "/"); return owner },
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			locker := newLocker(t, server.Client(), 30*time.Second)
			began, proceed := make(chan string, 10), make(chan struct{})
			handled := newSignal(3)
			results := router.Results{Log: quiet(), By: by, Handler: func(_ context.Context, r events.Result) error {
				began <- r.Repo.String()
				<-proceed
				handled.one()
				return nil
			}}
			var routes []router.Route
			for _, process := range []string{"a", "b"} {
				routes = append(routes, router.Route{Name: process, Topic: events.DefaultNamespace.Results(), Subscriber: follower(t, server, "index", make(endings, 3)),
					Handler: results.Handle, Locker: locker, Request: results.Request, Dispose: router.Disposer{Log: quiet()}})
			}
			run(t, routes...)
			pub := newPublisher(t, server.Client())
			publishTo(t, pub, routes[0].Topic, "m1", resultOf(t, "r1", "acme/widgets"))
			within(t, began, "first result")
			same := "ACME/Widgets" // the same repository, and the same owner
			if by != nil {
				same = "acme/gadgets"
			}
			publishTo(t, pub, routes[0].Topic, "m2", resultOf(t, "r2", same))
			publishTo(t, pub, routes[0].Topic, "m3", resultOf(t, "r3", "zenith/docs"))
			if repo := within(t, began, "result of another key"); repo != "zenith/docs" {
				t.Errorf("%s began while its key was held", repo)
			}
			close(proceed)
			within(t, handled.all, "end of all results")
		})
	}
}

func TestOfTheResultsThatWaitOnlyTheNewestIsHandled(t *testing.T) {
	for name, share := range map[string]int{"in this consumer's hands": 0, "parked": 1} {
		t.Run(name, func(t *testing.T) {
			ctx, server := context.Background(), redistest.Start(t)
			client := server.Client()
			began, proceed := make(chan string, 10), make(chan struct{})
			results := router.Results{Log: quiet(),
				Handler:    func(_ context.Context, r events.Result) error { began <- r.ID; <-proceed; return nil },
				Supersedes: func(later, earlier events.Result) bool { return later.App == earlier.App },
			}
			sub, err := stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Reader: server.Client(), Prefix: prefix,
				Group: "index", Grace: time.Second, Log: quiet(), Key: results.Key, KeyLimit: share})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sub.Close() })
			run(t, router.Route{Name: "index", Topic: events.DefaultNamespace.Results(), Subscriber: sub, Handler: results.Handle,
				Locker: newLocker(t, client, 30*time.Second), Request: results.Request, Dispose: router.Disposer{Log: quiet()}})

			pub := newPublisher(t, client)
			publish := func(id, app string) {
				payload := strings.Replace(string(resultOf(t, id, "acme/widgets")), `"repo"`, `"app":"`+app+`","repo"`, 1)
				publishTo(t, pub, events.DefaultNamespace.Results(), "m-"+id, []byte(payload))
			}
			publish("r1", "docs")
			within(t, began, "first result")
			for _, id := range []string{"r2", "r3", "r4"} {
				publish(id, "docs")
			}
			publish("s1", "search") // another app's: nothing of the docs supersedes it
			publish("r5", "docs")
			pending := func(n int64) func() bool {
				return func() bool { return client.XPending(ctx, events.DefaultNamespace.Results(), "index").Val().Count == n }
			}
			stopWhen(t, pending(6)) // all have been read
			close(proceed)
			stopWhen(t, pending(0))
			handled := []string{within(t, began, "second result"), within(t, began, "third result")}
			if slices.Sort(handled); !slices.Equal(handled, []string{"r5", "s1"}) || len(began) != 0 {
				t.Errorf("handled %q and %d more; want r5 and s1", handled, len(began))
			}
		})
	}
}
