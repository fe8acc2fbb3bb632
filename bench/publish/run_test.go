package publish

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/internal/proctest"
)

// brokenSide publishes nothing.
type brokenSide struct{ dir string }

func (s brokenSide) publish(context.Context) (Publication, error) {
	return Publication{}, nil
}
func (s brokenSide) tree() string               { return s.dir }
func (s brokenSide) tidy(context.Context) error { return nil }
func (s brokenSide) Close()                     {}

func TestTurnFailsIfAPushIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	r := run{dir: dir}
	side := namedSide{"broken", brokenSide{dir}}
	if _, err := r.turn(t.Context(), side, "a", "new"); err == nil {
		t.Error("a file that is not there will do")
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600))(t)
	if _, err := r.turn(t.Context(), side, "a", "new"); err == nil || !strings.Contains(err.Error(), "does not have the pushed content") {
		t.Errorf("an old file: got %v", err)
	}
	if _, err := r.turn(t.Context(), side, "a", "old"); err != nil {
		t.Errorf("what was pushed: got %v", err)
	}
}

func TestReportComparesTheLargestWithTheSmallest(t *testing.T) {
	repo := func(files int, build time.Duration) Repo {
		p := Publication{Phases: map[string]time.Duration{PhaseBuild: build, PhaseIndex: time.Duration(files), PhaseFlip: 1}}
		return Repo{Files: files, Pushes: Turns{SideReused: {p}}}
	}
	report := Report{Repos: []Repo{repo(500, 99), repo(60, 1), repo(50_000, 9)}}
	report.compare()
	if report.LargestToSmallestReused != 5 {
		t.Errorf("got %v, want 5", report.LargestToSmallestReused)
	}
}
