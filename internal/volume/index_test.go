package volume

import (
	"strings"
	"testing"
)

func TestGitReadsTheIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "dir/b": "2", "dir.c": "3", "dir-d": "4", strings.Repeat("n", 200): "5"})
	w.sync("")
	w.push(map[string]string{"dir/b": "changed", "dir/e": "new"})
	w.sync("")
	if out := w.gitIn(widgets, "ls-files", "--stage", "--debug"); !strings.Contains(out, "dir/e") {
		t.Errorf("git ls-files: %s", out)
	}
	if out := w.gitIn(widgets, "diff-files", "--raw"); out != "" {
		t.Errorf("git diff-files finds %s", out)
	}
}

// A user modifies a tree's index. Later trees must be built from the published commit.
func TestTamperedIndexIsNotReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "2"})
	w.sync("")
	w.gitIn(widgets, "rm", "--cached", "--quiet", "b")
	commit := w.push(map[string]string{"a": "changed"})
	w.sync("")
	w.mustRead(widgets, map[string]string{"a": "changed", "b": "2"})
	w.mustBeSound(widgets, commit)
}

// flipped returns content with one bit flipped in byte i.
func flipped(content []byte, i int) []byte {
	spoilt := append([]byte(nil), content...)
	spoilt[i] ^= 0x40
	return spoilt
}
