package checkout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
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
		want = append(want, describe(entry{path, filemode.Regular, object.SHA1.Hash(plumbing.BlobObject, []byte(path))}, st))
	}
	file := filepath.Join(dir, "index")
	content := want.encode()
	testenv.Must(0, os.WriteFile(file, content, 0o644))(t)
	got := testenv.Must(readManifest(file))(t)
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
			testenv.Must(0, os.WriteFile(file, spoilt, 0o644))(t)
			if _, err := readManifest(file); err == nil {
				t.Fatalf("a manifest spoilt at byte %d was read", i)
			}
		}
		if i == 300 { // later bytes are similar
			break
		}
	}
}

func flipped(content []byte, i int) []byte {
	spoilt := append([]byte(nil), content...)
	spoilt[i] ^= 0x40
	return spoilt
}
