package handlers_test

import (
	"context"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
)

// observedRepos counts how often what is published is read, which opens trees, and fails to store listed refs with setListed.
type observedRepos struct {
	handlers.Repos
	published int
	setListed error
}

func (r *observedRepos) Published(repo events.RepoPath) (handlers.Published, bool, error) {
	r.published++
	return r.Repos.Published(repo)
}

func (r *observedRepos) SetListedRefs(ctx context.Context, repo events.RepoPath, fence uint64, refs map[events.Ref]handlers.ListedRef) error {
	if r.setListed != nil {
		return r.setListed
	}
	return r.Repos.SetListedRefs(ctx, repo, fence, refs)
}

func (w *world) observeRepos() *observedRepos {
	observed := &observedRepos{Repos: w.handlers.Repos}
	w.handlers.Repos = observed
	return observed
}

func TestSyncOfAWatchWithLFSDoesNotReadOtherTrees(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.watchAs(watch.Watch{App: "art", URL: url, LFS: watch.LFSFetch}, "")
	w.mustHandle("1-0", events.Change{URL: url, App: "art", Watched: true})
	w.push(map[string]string{"a": "2"})
	observed := w.observeRepos()
	w.mustHandle("2-0", events.Change{URL: url, App: "art", Watched: true})
	if observed.published > 0 {
		t.Errorf("the published trees were read %d times", observed.published)
	}
}

func TestCoveredAppsOfATagReadThePublishedRefsOnce(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.tag(first, "v1", "v2")
	tag, url := mustRef("refs/tags/v2"), w.git.URL("acme/widgets")
	for _, app := range []string{"docs", "search", "scan", "ci"} {
		w.limit(app, "refs/tags/v*", 3)
	}
	observed := w.observeRepos()
	w.latest = "8-0"
	outcome, err := w.outcome("1-0", events.Change{URL: url, Ref: tag, App: "docs", Watched: true})
	must(t, err)
	before := observed.published
	for _, app := range []string{"search", "scan", "ci"} {
		if _, ok := outcome.Covers(context.Background(), w.job("2-0", events.Change{Repo: w.repo(), URL: url, Ref: tag, App: app, Watched: true})); !ok {
			t.Errorf("%s is not covered", app)
		}
	}
	if n := observed.published - before; n != 1 {
		t.Errorf("the published refs were read %d times for 3 covered changes, want once", n)
	}
}

// TestSyncThatAPollRequestedRequestsNoPoll syncs one branch too many: the poll that found it requests the removals, too.
func TestSyncThatAPollRequestedRequestsNoPoll(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.limit("ci", "refs/heads/*", 1)
	w.settle("a")
	w.branch(first, "0new")
	w.mustHandle("b-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
	if got := requested(w.next); !strings.HasPrefix(got, "pushed ci refs/heads/0new") {
		t.Fatalf("the poll requested %q", got)
	}
	job := w.job("c-0", events.Change{Repo: w.repo(), URL: w.git.URL("acme/widgets"), Ref: mustRef("0new"), App: "ci", Watched: true})
	job.Change.ID = "poll/b-0/1"
	outcome, err := w.handlers.Handle(context.Background(), job)
	must(t, err)
	if len(outcome.Changes) > 0 {
		t.Errorf("the sync requested %q", requested(outcome.Changes))
	}
}

// TestNewPatternTakesNoOldBranchForChanged adds a pattern that matches branches that no pattern did before.
func TestNewPatternTakesNoOldBranchForChanged(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.branch(first, "a", "x1", "z")
	w.watch("other", "refs/heads/x*")
	one := w.watch("docs", "z")
	w.settle("a")
	if _, err := w.git.Commit(context.Background(), "acme/widgets", "z", gitserver.Edit{Write: map[string]string{"z": "2"}}); err != nil {
		t.Fatal(err)
	}
	w.hook("b-0", one, "z")
	w.limit("ci", "refs/heads/*", 1)
	w.settle("c")
	if got := w.names(); got != "x1 z" {
		t.Errorf("published %q, want of the new pattern's branches the one that has changed", got)
	}
}

// TestPollGoesOnWithoutItsList fails to store which refs were listed. Only a newer holder ends the poll.
func TestPollGoesOnWithoutItsList(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watch("ci", "refs/heads/*")
	observed := w.observeRepos()
	due := events.Change{Type: events.ChangeDue, Repo: w.repo()}
	for class, want := range map[events.Class]bool{events.ClassVolume: true, events.ClassQuota: true, events.ClassStale: false} {
		observed.setListed = events.Errorf(events.Retryable, class, "cannot write")
		outcome, err := w.outcome("1-0", due)
		if ok := err == nil && len(outcome.Changes) == 1; ok != want {
			t.Errorf("%s: requested %q, error %v; want a poll that goes on: %v", class, requested(outcome.Changes), err, want)
		}
	}
}
