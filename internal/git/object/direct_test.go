package object

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestBlobsAreReadDirectly copies blobs of several sizes out of a pack, and then out of the same pack with damage.
func TestBlobsAreReadDirectly(t *testing.T) {
	h := gitRepo{dir: t.TempDir(), t: t}
	h.git("", "init", "-q", "--bare")
	blobs := map[string]string{}
	for _, size := range []int{0, 1, firstRead - maxOverhead, firstRead, 100_000, LargeObject, LargeObject + 1} {
		content := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		blobs[h.git(content, "hash-object", "-w", "--stdin")] = content
	}
	names := strings.Join(slices.Collect(maps.Keys(blobs)), "\n") + "\n"
	h.git(names, "pack-objects", "-q", "--window=0", filepath.Join(h.dir, "objects", "pack", "pack"))
	h.git("", "prune-packed", "-q")
	o := Open(h.dir)
	defer o.Close()
	for name, want := range blobs {
		content, ok := o.blob(ParseID(name))
		if direct := len(want) <= LargeObject; ok != direct || ok && string(content) != want {
			t.Errorf("%d bytes: read %d directly: %v", len(want), len(content), ok)
		}
		var out bytes.Buffer
		if err := o.CopyBlob(&out, ParseID(name)); err != nil || out.String() != want {
			t.Errorf("%d bytes: %v", len(want), err)
		}
	}
	for _, path := range testenv.Must(filepath.Glob(filepath.Join(h.dir, "objects", "pack", "*.pack")))(t) {
		damaged := testenv.Must(os.ReadFile(path))(t)
		for i := packHeader + 2; i < len(damaged)-packTrailer; i++ {
			damaged[i] ^= 0x55
		}
		testenv.Must(0, os.Chmod(path, 0o600))(t)
		testenv.Must(0, os.WriteFile(path, damaged, 0o600))(t)
	}
	again := Open(h.dir)
	defer again.Close()
	for name := range blobs {
		if err := again.CopyBlob(&bytes.Buffer{}, ParseID(name)); err == nil || events.ClassOf(err) != events.ClassCorrupt {
			t.Errorf("damaged: %v", err)
		}
	}
}
