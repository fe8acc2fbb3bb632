// Command program uses each public package of Lockstep from another module, and implements the interfaces of handlers.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/locking"
	"lockstep/router"
	"lockstep/router/observe"
	"lockstep/tree"
)

type repos struct{}

func (repos) Sync(_ context.Context, req handlers.SyncRequest) (handlers.SyncResult, error) {
	return handlers.SyncResult{Tip: handlers.Tip{Ref: req.Ref}, Path: req.Repo.String()}, req.Confirm(context.Background())
}

func (repos) Remove(context.Context, handlers.RemoveRequest) error { return nil }

func (repos) Move(_ context.Context, req handlers.MoveRequest) (handlers.MoveResult, error) {
	return handlers.MoveResult{Moved: true, Path: req.To.String()}, nil
}

func (repos) ListRefs(_ context.Context, _ events.RepoPath, remote handlers.Remote) (handlers.Refs, error) {
	return handlers.Refs{Commits: map[string]string{"refs/heads/main": remote.URL}}, nil
}

func (repos) Published(events.RepoPath) (handlers.Published, bool, error) {
	return handlers.Published{}, false, nil
}

func (repos) ListedRefs(events.RepoPath) (map[events.Ref]handlers.ListedRef, error) { return nil, nil }

func (repos) SetListedRefs(context.Context, events.RepoPath, uint64, map[events.Ref]handlers.ListedRef) error {
	return nil
}

type states struct{}

func (states) Fields(context.Context, events.RepoPath) (map[string]string, error) { return nil, nil }

func (states) SetMisses(context.Context, events.RepoPath, events.Ref, string, int) error { return nil }
func (states) Deny(context.Context, events.RepoPath, string, string, events.Class) error { return nil }

func (states) Circuit(context.Context, events.RepoPath) (handlers.CircuitState, error) {
	return handlers.CircuitState{}, nil
}

func (states) Failed(context.Context, events.RepoPath, uint64, handlers.CircuitPolicy) (handlers.CircuitState, bool, error) {
	return handlers.CircuitState{Failures: 1}, false, nil
}

type credentials struct{}

func (credentials) Resolve(context.Context, string, string) (handlers.Secret, error) {
	return handlers.Secret{BearerToken: os.Getenv("TOKEN")}, nil
}

func (credentials) Refused(string, handlers.Secret) bool { return false }

func (credentials) URLs(string) ([]string, error) { return nil, nil }

type everything struct{}

func (everything) IsDefault() bool         { return false }
func (everything) Matches(events.Ref) bool { return true }
func (everything) MatchesName(string) bool { return true }
func (everything) String() string          { return "refs/*" }
func (everything) Ref() (events.Ref, bool) { return events.Ref{}, false }

type watches struct{}

func (watches) Of(_ context.Context, repo events.RepoPath) ([]handlers.Watch, error) {
	return []handlers.Watch{{App: "docs", Repo: repo, Ref: everything{}}}, nil
}

func (watches) Move(context.Context, events.RepoPath, events.RepoPath, string) error { return nil }

type hosts struct{}

func (hosts) Enter(_ context.Context, req handlers.HostRequest) (handlers.HostPermit, error) {
	if req.Kind == handlers.HostPoll {
		return nil, events.Errorf(events.Contention, events.ClassLimited, "polls of %s are not allowed", req.Host)
	}
	return hosts{}, nil
}

func (hosts) Leave(context.Context, events.RepoPath) {}

func (hosts) Done(_ context.Context, a handlers.HostAnswer) error { return a.Err }

func main() {
	if err := run(context.Background(), redis.NewClient(&redis.Options{MaxRetries: -1}), slog.Default()); err != nil {
		slog.Error("cannot run", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, client redis.UniversalClient, log *slog.Logger) error {
	namespace := events.DefaultNamespace
	locker, err := locking.New(locking.Config{Redis: client, Prefix: namespace.Locks()})
	if err != nil {
		return err
	}
	h := handlers.Handlers{Repos: repos{}, States: states{}, Credentials: credentials{}, Watches: watches{}, Hosts: hosts{}}
	circuit := handlers.Circuit{Store: states{}, Observe: func(to handlers.CircuitPhase) { log.Info("circuit", "phase", string(to)) }}
	changes := router.Changes{Namespace: namespace, Source: "/example/w1", Handler: circuit.Wrap(h.Handle), Log: log}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Prefix: string(namespace), Group: "workers", Key: changes.Key})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Routes: []router.Route{{
		Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Admit: changes.Admit, Locker: locker, Request: changes.Request, Slots: router.NewSlots(4),
		Observer: &observe.Observer{Events: func(e observe.Event) { fmt.Println(e.Kind, e.Timeline.Outcome) }},
		Dispose:  router.Disposer{Failed: changes.Failed, OnGiveUp: changes.OnGiveUp},
	}}})
	if err != nil {
		return err
	}
	published, err := tree.Open("/srv/repos", "acme/widgets")
	if !errors.Is(err, tree.ErrNotPublished) {
		defer published.Close()
	}
	return router.Run(ctx, r)
}
