package follow

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestSlowListStallsNothing holds the reader's first list back: the stream and the results of the local worker go on, and what the stream
// has said of a repository meanwhile is not overruled by the older list.
func TestSlowListStallsNothing(t *testing.T) {
	t.Parallel()
	older, newer := strings.Repeat("a", 40), strings.Repeat("b", 40)
	refs := func(commit string) string {
		return fmt.Sprintf(`"refs":[{"ref":"refs/heads/main","commit":"%s","default":true}]`, commit)
	}
	listed, answer := make(chan struct{}, 1), make(chan struct{})
	f, _ := newFollower(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/refs") {
			fmt.Fprintf(w, `{%s}`, refs(newer))
			return
		}
		listed <- struct{}{}
		select {
		case <-answer:
			fmt.Fprintf(w, `{"repos":[{"repo":"acme/widgets",%s},{"repo":"acme/gadgets",%s}]}`, refs(older), refs(older))
		case <-r.Context().Done():
		}
	})
	requested := make(chan events.Change, 10)
	f.ask = f.inBackground
	f.cfg.Publish = func(_ context.Context, change events.Change) error {
		requested <- change
		return nil
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- f.apply(ctx) }()
	next := func() events.Change {
		t.Helper()
		select {
		case change := <-requested:
			return change
		case <-ctx.Done():
			t.Fatal("nothing is requested")
			return events.Change{}
		}
	}

	f.send(ctx, incoming{frame: &Frame{Cursor: "c1"}, opened: true, restart: true})
	<-listed
	pushed := events.Result{
		ID: "1", Type: events.ResultSynced, Source: "/test", Repo: testenv.Must(events.ParseRepoPath("acme/widgets"))(t),
		Ref: testenv.Must(events.ParseRef("main"))(t), After: newer, Path: "acme/widgets",
	}
	f.send(ctx, incoming{frame: &Frame{Cursor: "c2", Data: testenv.Must(pushed.MarshalJSON())(t)}})
	first := next()
	if first.Repo.String() != "acme/widgets" || first.After != newer {
		t.Errorf("requested %+v, want the pushed commit", first)
	}
	f.Settle(ctx, events.Result{ID: first.ID + "/1", Type: events.ResultSynced})
	if status := f.Status(); status.CaughtUp || status.Cursor != "" {
		t.Errorf("%+v before anything was listed", status)
	}
	close(answer)
	commits := map[string]string{}
	for range 2 {
		change := next()
		commits[change.Repo.String()] = change.After
	}
	if commits["acme/widgets"] != newer || commits["acme/gadgets"] != older {
		t.Errorf("requested %v, want what was listed, and what was pushed later", commits)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestSlowPurgeStallsNothing holds a purge back, which waits for a lease: the stream and the results of the local worker go on, and
// the position does not pass it.
func TestSlowPurgeStallsNothing(t *testing.T) {
	t.Parallel()
	f, _ := newFollower(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"repos":[]}`) })
	began, finish := make(chan struct{}, 1), make(chan struct{})
	f.ask = f.inBackground
	f.cfg.Purge = func(ctx context.Context, _ events.RepoPath) error {
		began <- struct{}{}
		select {
		case <-finish:
		case <-ctx.Done():
		}
		return nil
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- f.apply(ctx) }()
	purged := events.Result{
		ID: "1", Type: events.ResultPurged, Source: "/test", Repo: testenv.Must(events.ParseRepoPath("acme/widgets"))(t), Commit: strings.Repeat("a", 40),
	}
	f.send(ctx, incoming{frame: &Frame{Cursor: "c1"}, opened: true})
	f.send(ctx, incoming{frame: &Frame{Cursor: "c2", Data: testenv.Must(purged.MarshalJSON())(t)}})
	select {
	case <-began:
	case <-ctx.Done():
		t.Fatal("nothing is purged")
	}
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	f.Settle(within, events.Result{ID: "another/1", Type: events.ResultSynced})
	f.send(within, incoming{frame: &Frame{Cursor: "c3"}})
	if within.Err() != nil {
		t.Error("a result or a frame waits for the purge")
	}
	if behind := f.Status().Behind; behind != 1 {
		t.Errorf("%d are behind, want the purge", behind)
	}
	close(finish)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHotRepositoryIsCompared has more results of a repository than the reader has answers: each answer may be older than a frame. What such
// a frame asks for stays open.
func TestHotRepositoryIsCompared(t *testing.T) {
	t.Parallel()
	older, newer := strings.Repeat("a", 40), strings.Repeat("b", 40)
	f, requested := newFollower(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"refs":[{"ref":"refs/heads/main","commit":"%s","default":true},{"ref":"refs/heads/dev","commit":"%s"}]}`, older, older)
	})
	repo, main := testenv.Must(events.ParseRepoPath("acme/widgets"))(t), testenv.Must(events.ParseRef("main"))(t)
	asks := 0
	f.ask = func(ctx context.Context, request func() func()) {
		if asks++; asks > 20 {
			t.Fatal("the refs of a hot repository are requested for ever")
		}
		note := request()
		f.position.frame(fmt.Sprintf("c%d", asks+1))
		f.follow(ctx, events.Result{Type: events.ResultSynced, Repo: repo, Ref: main, After: newer, Path: "acme/widgets"})
		note()
	}
	f.position.frame("c1")
	f.compare(t.Context(), repo)
	if len(f.compared) > 0 {
		t.Errorf("still to be compared: %v", f.compared)
	}
	if last := (*requested)[len(*requested)-1]; last.Ref.String() != "refs/heads/dev" {
		t.Errorf("requested %v at last, want what the answer has", last.Ref)
	}
	if _, open := f.position.open[keyOf(repo, main)]; !open {
		t.Error("what a newer frame asks for is taken for done")
	}
}

// TestRepositoryThatCannotBeReadDelaysNoOther has one of the repositories that an API token lists unavailable.
func TestRepositoryThatCannotBeReadDelaysNoOther(t *testing.T) {
	t.Parallel()
	f, requested := newFollower(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.EscapedPath(), "widgets"):
			http.Error(w, `{"error":"published, but Redis does not have its state"}`, http.StatusServiceUnavailable)
		case strings.HasSuffix(r.URL.Path, "/refs"):
			fmt.Fprintf(w, `{"refs":[{"ref":"refs/heads/main","commit":"%s","default":true}]}`, strings.Repeat("a", 40))
		default:
			fmt.Fprint(w, `{"repos":[{"repo":"acme/widgets"},{"repo":"acme/gadgets"}]}`)
		}
	})
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	f.position.frame("c1")
	f.list(t.Context(), true)
	f.checkMissing(t.Context())
	if f.listed == 0 || f.listTry > 0 {
		t.Error("nothing is listed")
	}
	if len(*requested) != 1 || (*requested)[0].Repo.String() != "acme/gadgets" || (*requested)[0].Type != events.ChangePushed {
		t.Errorf("requested %+v, want a sync of the other", *requested)
	}
	if !f.isOpen(repo) || f.checks[repo.Key()] == nil || !f.mayBeListed(repo) {
		t.Error("the repository is not compared again")
	}
}

// TestRemovalWhileRefsAreRequested compares the refs once more: the answer may be older than the removal.
func TestRemovalWhileRefsAreRequested(t *testing.T) {
	t.Parallel()
	f, requested := newFollower(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"refs":[{"ref":"refs/heads/main","commit":%q,"default":true}]}`, strings.Repeat("a", 40))
	})
	repo, dev := testenv.Must(events.ParseRepoPath("acme/widgets"))(t), testenv.Must(events.ParseRef("dev"))(t)
	f.ask = func(ctx context.Context, request func() func()) {
		note := request()
		f.position.frame("c2")
		f.follow(ctx, events.Result{Type: events.ResultRemoved, Repo: repo, Ref: dev})
		note()
	}
	f.position.frame("c1")
	f.compare(t.Context(), repo)
	if !f.isOpen(repo) || f.checks[repo.Key()] == nil || len(*requested) > 0 {
		t.Errorf("requested %+v, and the refs are not compared again", *requested)
	}
}
