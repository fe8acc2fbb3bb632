package demo

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

func TestReadTreeDetectsIncompleteTrees(t *testing.T) {
	const repo, commit = "demo/hot", "1111111111111111111111111111111111111111"
	for name, tc := range map[string]struct {
		spoil    func(tree string) error
		complete bool
	}{
		"complete": {func(string) error { return nil }, true},
		"a file of another push": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "dir-3/file-3"), []byte(contents(repo, 2)["dir-3/file-3"]), 0o644)
		}, false},
		"a truncated file": {func(tree string) error { return os.Truncate(filepath.Join(tree, "dir-3/file-3"), 3) }, false},
		"a missing file":   {func(tree string) error { return os.Remove(filepath.Join(tree, "dir-3/file-3")) }, false},
		"another commit": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, ".git/lockstep-commit"), []byte("2"), 0o644)
		}, false},
		"no commit": {func(tree string) error { return os.RemoveAll(filepath.Join(tree, ".git")) }, false},
		"no tree":   {os.RemoveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{root: t.TempDir()}
			tree := filepath.Join(d.root, repo)
			for path, text := range contents(repo, 1) {
				proctest.Must(0, os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755))(t)
				proctest.Must(0, os.WriteFile(filepath.Join(tree, path), []byte(text), 0o644))(t)
			}
			proctest.Must(0, os.Mkdir(filepath.Join(tree, ".git"), 0o755))(t)
			proctest.Must(0, os.WriteFile(filepath.Join(tree, ".git", "lockstep-commit"), []byte(commit+"\n"), 0o644))(t)
			proctest.Must(0, tc.spoil(tree))(t)
			if err := d.readTree(&sampleRepo{name: repo, commits: map[string]int{commit: 1}}); (err == nil) != tc.complete {
				t.Errorf("error %v, want complete: %v", err, tc.complete)
			}
		})
	}
}

func TestCountOfResults(t *testing.T) {
	d := &demo{published: map[string]*push{}, std: term.Streams{Stderr: io.Discard}}
	hot, cold := &sampleRepo{commits: map[string]int{}}, &sampleRepo{commits: map[string]int{}}
	first, _, third := d.register(hot, "a"), d.register(hot, "b"), d.register(cold, "c")
	for _, id := range []string{first, first, "of a watch"} {
		d.count(events.Result{Type: events.ResultSynced, Deliveries: []string{id}}, time.Now())
	}
	d.count(events.Result{Type: events.ResultFailed, Deliveries: []string{third}}, time.Now())
	if hot.settled != 1 || hot.doubled != 1 || cold.failed != 1 || len(hot.latencies) != 1 || len(cold.latencies) != 1 {
		t.Errorf("%d settled, %d doubled, %d failed; want 1 each", hot.settled, hot.doubled, cold.failed)
	}
}
