package checkout

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

func TestManifestRoundTrip(t *testing.T) {
	for _, format := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(format.String(), func(t *testing.T) { checkRoundTrip(t, format) })
	}
}

func checkRoundTrip(t *testing.T, format object.Format) {
	dir := t.TempDir()
	long := strings.Repeat("x", 5000)
	var want manifest
	for _, path := range []string{"a", "ab/c", "latin1-\xe9", long} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		want = append(want, describe(entry{path: path, mode: filemode.Regular, hash: format.Hash(plumbing.BlobObject, []byte(path))}, st, format))
	}
	file := filepath.Join(dir, "index")
	content := want.encode(format)
	testenv.Must(0, os.WriteFile(file, content, 0o644))(t)
	if n := testenv.Must(sizeOfManifest(file, format))(t); n != len(want) {
		t.Errorf("%d entries, want %d", n, len(want))
	}
	got := testenv.Must(readManifest(file, format))(t)
	if !slices.Equal(got, want) {
		t.Errorf("read %d entries, want %d", len(got), len(want))
	}
	if _, err := readManifest(file, object.SHA1+object.SHA256-format); err == nil {
		t.Error("read as a manifest of the other format")
	}
	if listed, err := listManifest(file, format); err != nil || !slices.EqualFunc(listed, want, func(f TreeFile, t tracked) bool {
		return f.Path == t.path && f.Mode == uint32(t.mode) && f.Blob == t.hash && f.Size == number(t.raw[36:]) && !f.InPart
	}) {
		t.Errorf("listed %d entries, %v; want %d", len(listed), err, len(want))
	}

	for i := range len(content) {
		for _, spoilt := range [][]byte{content[:i], flipped(content, i)} {
			testenv.Must(0, os.WriteFile(file, spoilt, 0o644))(t)
			if _, err := readManifest(file, format); err == nil {
				t.Fatalf("a manifest spoilt at byte %d was read", i)
			}
			if _, err := listManifest(file, format); err == nil {
				t.Fatalf("a manifest spoilt at byte %d was listed", i)
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

// listManifest reads a manifest as a stream.
func listManifest(file string, format object.Format) (listed []TreeFile, err error) {
	m, err := readingManifest(file, format)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	for err = m.next(); err == nil && !m.ended; err = m.next() {
		listed = append(listed, m.file)
	}
	return listed, err
}
