package handlers_test

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/handlers"
)

// memory implements the interfaces for one repository that is always at the same commit.
type memory struct{ handlers.Repos }

func (memory) Sync(_ context.Context, req handlers.SyncRequest) (handlers.SyncResult, error) {
	tip := handlers.Tip{Ref: req.Ref, Commit: "c0ffee"}
	return handlers.SyncResult{Tip: tip, Path: req.Repo.String(), Asked: true}, nil
}

func (memory) Fields(context.Context, events.RepoPath) (map[string]string, error) { return nil, nil }

func (memory) SetMisses(context.Context, events.RepoPath, events.Ref, string, int) error { return nil }
func (memory) Deny(context.Context, events.RepoPath, string, string, events.Class) error { return nil }

func (memory) Resolve(context.Context, string, string) (handlers.Secret, error) {
	return handlers.Secret{}, nil
}

func (memory) Refused(string, handlers.Secret) bool { return false }

func (memory) URLs(string) ([]string, error) { return nil, nil }

// Handlers with a custom implementation of the interfaces. The router makes the job from a change on the stream.
func Example() {
	ref, err := events.ParseRef("main")
	if err != nil {
		panic(err)
	}
	change, err := events.NewChange(events.Change{ID: "push-1", URL: "https://example.com/acme/widgets.git", Ref: ref})
	if err != nil {
		panic(err)
	}
	h := handlers.Handlers{Repos: memory{}, States: memory{}, Credentials: memory{}}
	outcome, err := h.Handle(context.Background(), events.Job{
		Change: change, Entry: "1-0",
		Latest: func(context.Context) (string, error) { return "", nil },
		Newest: func(context.Context) (string, error) { return "", nil },
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(outcome.Result.Repo, outcome.Result.Ref, outcome.Result.After)
	// Output: acme/widgets refs/heads/main c0ffee
}
