package handlers_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// TestSyncOfAWatchWithLFSDoesNotReadOtherTrees has another tree with a file that cannot be read to its end.
func TestSyncOfAWatchWithLFSDoesNotReadOtherTrees(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.branch(first, "dev")
	url := w.git.URL("acme/widgets")
	w.mustHandle("1-0", events.Change{URL: url, Ref: mustRef("dev")})
	w.watchAs(watch.Watch{App: "art", URL: url, Options: watch.With(lfs.Options{Mode: lfs.Fetch})}, "")
	art := events.Change{URL: url, App: "art", Watched: true}
	w.mustHandle("2-0", art)
	must(t, unix.Mkfifo(filepath.Join(w.root, "acme/widgets@dev/.git/lockstep-lfs"), 0o600))
	w.push(map[string]string{"a": "2"})
	done := make(chan error, 1)
	go func() {
		_, err := w.handle("3-0", art)
		done <- err
	}()
	must(t, testenv.Receive(t, done, "end of the sync, which reads the other tree"))
}

func TestCoveredAppsOfATagReadThePublishedRefsOnce(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.tag(first, "v1", "v2")
	tag, url := mustRef("refs/tags/v2"), w.git.URL("acme/widgets")
	for _, app := range []string{"docs", "search", "scan", "ci"} {
		w.limit(app, "refs/tags/v*", 3)
	}
	w.latest = "8-0"
	outcome, err := w.outcome("1-0", events.Change{URL: url, Ref: tag, App: "docs", Watched: true})
	must(t, err)
	covers := func(app string) bool {
		t.Helper()
		change := events.Change{Repo: w.repo(), URL: url, Ref: tag, App: app, Watched: true}
		_, ok := outcome.Covers(context.Background(), w.job("2-0", change))
		return ok
	}
	if !covers("search") {
		t.Error("search is not covered")
	}
	later := map[events.Ref]volume.ListedRef{}
	for _, name := range []string{"v3", "v4", "v5"} {
		later[mustRef("refs/tags/"+name)] = volume.ListedRef{Commit: first}
	}
	must(t, w.handlers.Volume.SetListedRefs(context.Background(), w.repo(), w.fence, later))
	for _, app := range []string{"scan", "ci"} {
		if !covers(app) {
			t.Errorf("%s is not covered: the published refs were read again", app)
		}
	}
	if _, err := w.outcome("3-0", events.Change{URL: url, Ref: tag, App: "ci", Watched: true}); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("once they are read again: %v, want the tag left out", err)
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
	outcome, err := w.try(job)
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
	first := w.create(map[string]string{"a": "1"})
	w.watch("ci", "refs/heads/*")
	w.due("1-0")
	w.branch(first, "dev")
	stale := w.job("2-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
	stale.Fence = 1
	if _, err := w.try(stale); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("after a newer holder: %v", err)
	}
	var log strings.Builder
	w.handlers.Log = slog.New(slog.NewTextHandler(&log, nil))
	must(t, os.Remove(filepath.Join(w.root, ".lockstep/volume"))) // as if it was unmounted
	outcome, err := w.outcome("3-0", events.Change{Type: events.ChangeDue, Repo: w.repo()})
	if err != nil || len(outcome.Changes) != 1 || !strings.Contains(log.String(), "listed refs not stored") {
		t.Errorf("requested %q, error %v; want a poll that goes on", requested(outcome.Changes), err)
	}
}
