package object

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

// FuzzPack receives arbitrary packs with a right checksum. Received objects must read back with their hash.
func FuzzPack(f *testing.F) {
	h := gitRepo{dir: f.TempDir(), t: f}
	h.git("", "init", "-q", "--bare", "-b", "main")
	var script, lines strings.Builder
	for v := range 4 {
		fmt.Fprintf(&lines, "a line that is not like others: %d\n", v)
		fmt.Fprintf(&script, "commit refs/heads/main\ncommitter A <a@b> %d +0000\ndata 1\nx\nM 100644 inline lines\ndata %d\n%s\n",
			1_700_000_000+v, lines.Len(), lines.String())
	}
	h.git(script.String(), "fast-import", "--quiet")
	s := newStore(f)
	first := h.git("", "rev-parse", "main~2")
	q := received(f, h.packed(first+"\n", "--delta-base-offset"))
	if err := q.Index(f.Context(), packDefaults(f), Progress{}); err != nil {
		f.Fatal(err)
	}
	if err := q.Release(s); err != nil {
		f.Fatal(err)
	}
	for _, pack := range [][]byte{
		h.packed("main\n", "--delta-base-offset"), h.packed("main\n"),
		h.packed("main\n^"+first+"\n", "--delta-base-offset"), h.packed("main\n^" + first + "\n"), (&packMaker{}).done(),
	} {
		f.Add(pack[:len(pack)-packTrailer], false)
		f.Add(pack[:len(pack)-packTrailer], true)
	}
	m := &packMaker{}
	b := m.blob("the base")
	m.ofs(m.ofs(b, delta(8, 9, copied(0, 8), insertion("!"))), delta(9, 4, copied(5, 4)))
	m.ref(blobHash("the base!"), delta(9, 2<<20, strings.Repeat(copied(0, 9), 100)))
	f.Add(m.Bytes(), true)
	cfg := packDefaults(f)
	cfg.MaxFileBytes, cfg.MaxInflatedBytes = 4<<20, 8<<20

	f.Fuzz(func(t *testing.T, pack []byte, thin bool) {
		q := received(t, summed(pack))
		r, err := q.openReceiver(testenv.Context(t), cfg, Progress{})
		if err != nil {
			return
		}
		defer r.close()
		if thin {
			r.store = Open(s)
			defer r.store.Close()
			r.loose = len(r.entries) <= 2 // so that both forms are tested
		}
		if err := r.receive(); err != nil {
			if strings.Contains(err.Error(), "panic") {
				t.Fatal(err)
			}
			return
		}
		objects := Open(q.Dir)
		defer objects.Close()
		for _, e := range r.entries {
			mustReadBack(t, objects, e)
		}
		if left, _ := filepath.Glob(filepath.Join(q.Dir, tempObject+"*")); len(left) > 0 {
			t.Errorf("temporary files: %v", left)
		}
		if _, err := os.Stat(q.packPath()); err == nil {
			t.Error("the fetched pack has not been removed")
		}
	})
}

func mustReadBack(t *testing.T, objects *Store, e packed) {
	t.Helper()
	obj, err := objects.Object(e.hash)
	if err != nil {
		t.Fatalf("%s %s: %v", e.kind, e.hash, err)
	}
	reader, err := obj.Reader()
	if err != nil {
		t.Fatalf("%s %s: %v", e.kind, e.hash, err)
	}
	defer reader.Close()
	hasher := testFormat.NewHasher(e.kind, obj.Size)
	if _, err := io.Copy(hasher, reader); err != nil || hasher.ID() != e.hash {
		t.Fatalf("%s %s reads as %s: %v", e.kind, e.hash, hasher.ID(), err)
	}
}
