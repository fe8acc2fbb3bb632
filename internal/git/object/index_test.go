package object

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// packOf creates a repository with one pack of some hundred objects, and returns their offsets according to git.
func packOf(t *testing.T) (dir, index string, objects map[ID]int64) {
	t.Helper()
	server := testenv.Must(gitserver.Start(t.TempDir()))(t)
	t.Cleanup(server.Close)
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("d%d/f%d", i%10, i)] = strings.Repeat(fmt.Sprintln("line", i%50), i)
	}
	testenv.Must(server.Create(t.Context(), "acme/widgets", files))(t)
	dir = server.Dir("acme/widgets")
	testenv.Must(gitserver.Git(t.Context(), dir, "", "repack", "-adq", "--depth=20"))(t)
	index = testenv.Must(filepath.Glob(filepath.Join(dir, "objects/pack/*.idx")))(t)[0]
	out := testenv.Must(gitserver.Git(t.Context(), dir, "", "verify-pack", "-v", index))(t)
	objects = map[ID]int64{}
	for line := range strings.Lines(out) {
		var hash, kind string
		var size, packed, offset int64
		if n, _ := fmt.Sscan(line, &hash, &kind, &size, &packed, &offset); n == 5 && IsID(hash) {
			objects[ParseID(hash)] = offset
		}
	}
	if len(objects) < 300 {
		t.Fatalf("git lists %d objects", len(objects))
	}
	return dir, index, objects
}

func TestPackIndexAgreesWithGit(t *testing.T) {
	dir, path, objects := packOf(t)
	index := testenv.Must(openPackIndex(path))(t)
	defer index.close()
	var ordered []ID
	for _, i := range testenv.Must(index.inOrder())(t) {
		ordered = append(ordered, testenv.Must(index.id(int64(i)))(t))
	}
	byOffset := slices.SortedFunc(maps.Keys(objects), func(a, b ID) int { return cmp.Compare(objects[a], objects[b]) })
	if !slices.Equal(ordered, byOffset) {
		t.Fatalf("objects in the order of the pack: %v, want %v", ordered, byOffset)
	}
	for range 2 { // the index is cached in the second round
		for hash, offset := range objects {
			if got := testenv.Must(index.findOffset(hash))(t); got != offset {
				t.Fatalf("%s is at %d, want %d", hash, got, offset)
			}
		}
		absent := testFormat.Hash(plumbing.BlobObject, []byte("absent"))
		if _, err := index.findOffset(absent); !errors.Is(err, ErrNotFound) {
			t.Fatalf("an absent object: %v", err)
		}
	}
	o := Open(dir)
	defer o.Close()
	for hash := range objects {
		testenv.Must(o.read(hash))(t)
	}
}

func TestDamagedPackIndexDoesNotPanic(t *testing.T) {
	_, path, objects := packOf(t)
	content := testenv.Must(os.ReadFile(path))(t)
	spoilt := filepath.Join(t.TempDir(), filepath.Base(path))
	for _, length := range []int{0, 7, 500, indexNames, indexNames + 1000, len(content) - 41} {
		testenv.Must(0, os.WriteFile(spoilt, content[:length], 0o644))(t)
		if _, err := openPackIndex(spoilt); err == nil {
			t.Errorf("an index cut at %d bytes was opened", length)
		}
	}
	for i := 0; i < len(content); i += 97 {
		testenv.Must(0, os.WriteFile(spoilt, flipped(content, i), 0o644))(t)
		index, err := openPackIndex(spoilt)
		if err != nil {
			continue
		}
		for hash := range objects {
			_, _ = index.findOffset(hash) // must not panic
		}
		_, _ = index.inOrder()
		index.close()
	}
}
