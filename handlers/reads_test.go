package handlers_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
)

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
