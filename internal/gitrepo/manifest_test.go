package gitrepo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"
)

func TestManifestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 5000)
	var want manifest
	for _, path := range []string{"a", "ab/c", "latin1-\xe9", long} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		want = append(want, describe(entry{path, filemode.Regular, plumbing.ComputeHash(plumbing.BlobObject, []byte(path))}, st))
	}
	file := filepath.Join(dir, "index")
	content := want.encode()
	must(0, os.WriteFile(file, content, 0o644))(t)
	got := must(readManifest(file))(t)
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("entry %d: %q, want %q", i, got[i].path, want[i].path)
		}
	}

	for i := range len(content) {
		for _, spoilt := range [][]byte{content[:i], flipped(content, i)} {
			must(0, os.WriteFile(file, spoilt, 0o644))(t)
			if _, err := readManifest(file); err == nil {
				t.Fatalf("a manifest spoilt at byte %d was read", i)
			}
		}
		if i == 300 { // the rest is much alike
			break
		}
	}
}

func flipped(content []byte, i int) []byte {
	spoilt := append([]byte(nil), content...)
	spoilt[i] ^= 0x40
	return spoilt
}

func TestGitReadsTheIndex(t *testing.T) {
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

// Somebody adds to a tree's index, which is not theirs to do. Later trees are built of what was published.
func TestAnIndexTamperedWithIsNotPassedOn(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1", "b": "2"})
	w.sync("")
	w.gitIn(widgets, "rm", "--cached", "--quiet", "b")
	commit := w.push(map[string]string{"a": "changed"})
	w.sync("")
	w.mustRead(widgets, map[string]string{"a": "changed", "b": "2"})
	w.mustBeSound(widgets, commit)
}
