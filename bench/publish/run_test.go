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

func (brokenSide) publish(context.Context, string) (Publication, error) { return Publication{}, nil }
func (s brokenSide) tree() string                                       { return s.dir }
func (brokenSide) tidy(context.Context) error                           { return nil }

func TestTurnFailsIfAPushIsNotPublished(t *testing.T) {
	dir := t.TempDir()
	side := brokenSide{dir}
	if _, err := turn(t.Context(), side, "", "a", "new"); err == nil {
		t.Error("a file that is not there will do")
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600))(t)
	if _, err := turn(t.Context(), side, "", "a", "new"); err == nil || !strings.Contains(err.Error(), "does not have the pushed content") {
		t.Errorf("an old file: got %v", err)
	}
	if _, err := turn(t.Context(), side, "", "a", "old"); err != nil {
		t.Errorf("what was pushed: got %v", err)
	}
}

func TestLinkIsSeenWhenItIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner", "name")
	flip := func(target string) {
		proctest.Must(0, os.Symlink(target, path+".next"))(t)
		proctest.Must(0, os.Rename(path+".next", path))(t)
	}
	for _, target := range []string{"first", "second"} {
		l := proctest.Must(watchLink(path))(t)
		flipped := make(chan error)
		go func() { flipped <- l.await(func() error { return nil }) }()
		select {
		case err := <-flipped:
			t.Fatalf("returned before %s: %v", target, err)
		case <-time.After(10 * time.Millisecond):
		}
		flip(target)
		proctest.Must(0, <-flipped)(t)
		l.Close()
	}
}

func TestWriterStops(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "writer")
	stop := startWriter(dir)
	proctest.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "round-0/99/99")); return err == nil }, "files are written")
	proctest.Must(0, stop())(t)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}
