package demo

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/proctest"
)

func TestReadTreeDetectsIncompleteTrees(t *testing.T) {
	const repo, commit = "demo/hot", "1111111111111111111111111111111111111111"
	for name, tc := range map[string]struct {
		spoil    func(tree string) error
		complete bool
	}{
		"complete": {func(string) error { return nil }, true},
		"a file of another push": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "dir-3/file-3"), []byte(fileText(repo, 2)), 0o644)
		}, false},
		"a truncated file": {func(tree string) error { return os.Truncate(filepath.Join(tree, "dir-3/file-3"), 3) }, false},
		"a missing file":   {func(tree string) error { return os.Remove(filepath.Join(tree, "dir-3/file-3")) }, false},
		"an extra file": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "new"), []byte(fileText(repo, 1)), 0o644)
		}, false},
		"another commit": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, ".git/lockstep-commit"), []byte("2"), 0o644)
		}, false},
		"no commit": {func(tree string) error { return os.RemoveAll(filepath.Join(tree, ".git")) }, false},
		"no tree":   {os.RemoveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{root: t.TempDir(), board: newBoard([]string{repo})}
			d.board.pushed(repo, 1, commit, 1)
			tree := filepath.Join(d.root, repo)
			for path, text := range contents(repo, 1) {
				proctest.Must(0, os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755))(t)
				proctest.Must(0, os.WriteFile(filepath.Join(tree, path), []byte(text), 0o644))(t)
			}
			proctest.Must(0, os.Mkdir(filepath.Join(tree, ".git"), 0o755))(t)
			proctest.Must(0, os.WriteFile(filepath.Join(tree, ".git", "lockstep-commit"), []byte(commit+"\n"), 0o644))(t)
			proctest.Must(0, tc.spoil(tree))(t)
			if err := d.readTree(repo); (err == nil) != tc.complete {
				t.Errorf("error %v, want complete: %v", err, tc.complete)
			}
		})
	}
}
