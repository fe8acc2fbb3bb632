package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func TestStoreRefetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := w.create(map[string]string{"a": "0"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	first := testenv.Must(f.currentStore(nil))(t)
	before := w.push(map[string]string{"b": "0"})
	w.sync("")
	testenv.Must(0, first.requestRefetch())(t)
	commit := w.push(map[string]string{"a": "1", "c": "1"})
	req := w.request("")
	res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if res.Full || res.Before != before {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	w.mustBeSound(widgets, commit)
	req = w.request("")
	req.Base = func(events.Ref, Publication) Base { return Base{Commit: begun} } // exists only in the first store
	if res = testenv.Must(w.volume.Sync(t.Context(), req))(t); res.Full {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	now := testenv.Must(f.currentStore(nil))(t)
	if size := testenv.Must(now.size(256))(t); now == first || size.packs != 1 || size.objects != 0 {
		t.Errorf("the store is %s, with %+v", now.dir, size)
	}

	// A repository that can no longer be fetched completely keeps its store.
	second := now
	testenv.Must(0, second.requestRefetch())(t)
	w.volume = w.open(w.volume.Root(), Config{MaxPackBytes: 700})
	w.push(map[string]string{"big": strings.Repeat("0123456789abcdef", 4)})
	w.sync("")
	if second.needsRefetch() && testenv.Must(f.currentStore(nil))(t) == second {
		t.Error("the store is still due")
	}
}

// TestLargePushes makes pushes whose packs are mostly superseded by the next one. Even without garbage collection, only
// a few packs may stay on disk.
func TestLargePushes(t *testing.T) {
	t.Parallel()
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	push := func() string {
		edit := map[string]string{}
		for i := range 120 {
			edit[fmt.Sprint("f", i)] = noise(t, 3000)
		}
		return w.push(edit)
	}
	w.create(nil)
	push()
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	fresh := diskUse(t, f.stores())
	for range testenv.Form(6, 25) {
		commit := push()
		w.sync("")
		if use := diskUse(t, f.stores()); use > 8*fresh {
			t.Fatalf("the stores take %d bytes, and %d at first", use, fresh)
		}
		w.mustBeSound(widgets, commit)
	}
}

// TestFailedRefetchIsNotRetriedEachSync has a repository that can no longer be fetched completely.
func TestFailedRefetchIsNotRetriedEachSync(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T, s store){
		"packs": func(t *testing.T, s store) {
			for i := range maxPacks + 1 { // copies of one pack
				for _, ext := range []string{".pack", ".idx"} {
					testenv.Must(0, os.Link(one(t, s.dir, "objects/pack/pack-*"+ext), filepath.Join(s.dir, fmt.Sprintf("objects/pack/copy-%d%s", i, ext))))(t)
				}
			}
		},
		"loose objects": func(*testing.T, store) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "0", "big": noise(t, 1_000_000)})
			w.sync("")
			w.volume = w.open(w.volume.Root(), Config{MaxPackBytes: 900_000, Grace: 1}) // so that each sync counts loose objects
			s := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			fill(t, s)
			const syncs = 10
			for i := range syncs {
				edit := map[string]string{"a": fmt.Sprint("next ", i)}
				for n := range 90 {
					edit[fmt.Sprint("f", i, "-", n)] = noise(t, 4000)
				}
				w.push(edit)
				w.sync("")
			}
			switch n := w.git.Stats(widgets).UploadPacks; {
			case n < syncs+2:
				t.Errorf("%d fetches for %d syncs: none was to be of everything", n, syncs+1)
			case n > syncs+5:
				t.Errorf("%d fetches for %d syncs", n, syncs+1)
			}
		})
	}
}
