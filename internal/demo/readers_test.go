package demo

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/proctest"
)

func TestADemosReaderSeesATreeThatIsNotWhole(t *testing.T) {
	const repo, commit = "demo/hot", "1111111111111111111111111111111111111111"
	for name, tc := range map[string]struct {
		spoil func(tree string) error
		whole bool
	}{
		"whole": {func(string) error { return nil }, true},
		"a file of another": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "dir-3/file-3"), []byte(demoText(repo, 2)), 0o644)
		}, false},
		"a file cut short":  {func(tree string) error { return os.Truncate(filepath.Join(tree, "dir-3/file-3"), 3) }, false},
		"a file is missing": {func(tree string) error { return os.Remove(filepath.Join(tree, "dir-3/file-3")) }, false},
		"one too many": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "new"), []byte(demoText(repo, 1)), 0o644)
		}, false},
		"it says another": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, ".git/lockstep-commit"), []byte("2"), 0o644)
		}, false},
		"it does not say which": {func(tree string) error { return os.RemoveAll(filepath.Join(tree, ".git")) }, false},
		"there is none":         {os.RemoveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{root: t.TempDir(), board: newDemoBoard([]string{repo})}
			d.board.pushed(repo, 1, commit, 1)
			tree := filepath.Join(d.root, repo)
			for path, text := range demoContents(repo, 1) {
				proctest.Must(0, os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755))(t)
				proctest.Must(0, os.WriteFile(filepath.Join(tree, path), []byte(text), 0o644))(t)
			}
			proctest.Must(0, os.Mkdir(filepath.Join(tree, ".git"), 0o755))(t)
			proctest.Must(0, os.WriteFile(filepath.Join(tree, ".git", "lockstep-commit"), []byte(commit+"\n"), 0o644))(t)
			proctest.Must(0, tc.spoil(tree))(t)
			if err := d.readTree(repo); (err == nil) != tc.whole {
				t.Errorf("error %v, want whole: %v", err, tc.whole)
			}
		})
	}
}
