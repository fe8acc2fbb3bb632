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

func TestBenchPublishFailsWhereAPushIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	run := PublishRun{Dir: dir}
	side := NamedSide{"broken", brokenSide{dir}}
	if _, err := run.Turn(t.Context(), side, "a", "new"); err == nil {
		t.Error("a file that is not there will do")
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600))(t)
	if _, err := run.Turn(t.Context(), side, "a", "new"); err == nil || !strings.Contains(err.Error(), "not as it was pushed") {
		t.Errorf("an old file: got %v", err)
	}
	if _, err := run.Turn(t.Context(), side, "a", "old"); err != nil {
		t.Errorf("what was pushed: got %v", err)
	}
}

func TestBenchPublishComparesTheLargestWithTheSmallest(t *testing.T) {
	repo := func(files int, build time.Duration) PublishedRepo {
		p := Publication{Phases: map[string]time.Duration{PhaseBuild: build, PhaseIndex: time.Duration(files), PhaseFlip: 1}}
		return PublishedRepo{Files: files, Pushes: PublishTurns{SideReused: {p}}}
	}
	report := PublishReport{Repos: []PublishedRepo{repo(500, 99), repo(60, 1), repo(50_000, 9)}}
	report.Compare()
	if report.LargestToSmallestReused != 5 {
		t.Errorf("got %v, want 5", report.LargestToSmallestReused)
	}
}
