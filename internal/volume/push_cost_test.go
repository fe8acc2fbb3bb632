package volume

import (
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// TestPushCostsTheSameWhateverIsKept compares the work of a push while few replaced trees are kept with that while many are, counted as
// allocations of this process. It is not parallel, because those of other tests would count.
func TestPushCostsTheSameWhateverIsKept(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	for name, kept := range map[string]struct {
		grace, grown time.Duration // while trees are replaced, and once there are many
		group, pins  bool          // a consumer group that never acknowledges; readers of all trees
		refs         int           // published besides main
	}{
		"within their grace":                {grace: time.Hour, grown: time.Hour},
		"within their grace, of many refs":  {grace: time.Hour, grown: time.Hour, refs: 20},
		"named by results nobody has taken": {grace: 1, grown: time.Minute, group: true},
		"pinned by readers":                 {grace: 1, grown: time.Minute, pins: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newResultsWorld(t, time.Hour)
			if kept.group {
				w.group("never")
			}
			for i := range kept.refs {
				branch := fmt.Sprint("other-", i)
				w.commit(branch, gitserver.Edit{Write: map[string]string{"a": branch}})
				w.sync(branch)
			}
			pushes := 0
			push := func() (allocations uint64) {
				w.push(map[string]string{"a": fmt.Sprint("push ", pushes)})
				pushes++
				before := mallocs()
				res := w.sync("")
				allocations = mallocs() - before
				testenv.Must(w.client.XAdd(t.Context(), &redis.XAddArgs{Stream: results, Values: []string{"tree", res.Tree}}).Result())(t)
				if kept.pins {
					reader := testenv.Must(tree.OpenResult(w.volume.Root(), w.at(res)))(t)
					t.Cleanup(func() { closeTree(t, reader) })
				}
				return allocations
			}
			least := func() uint64 { // of a few, as some also prune, and the Git server allocates, too
				allocations := uint64(math.MaxUint64)
				for range 8 {
					allocations = min(allocations, push())
				}
				return allocations
			}
			w.volume.cfg.Grace = kept.grace
			push()
			few := least()
			for range testenv.Soak(100, 1000) {
				push()
			}
			w.volume.cfg.Grace = kept.grown
			many := least()
			t.Logf("%d allocations for a push at first, %d after %d pushes", few, many, pushes)
			if float64(many) > 1.2*float64(few) {
				t.Errorf("%d allocations for a push after %d pushes, and %d at first; want at most 1.2 times as many", many, pushes, few)
			}
		})
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// mustKeepOnlyPublished syncs, without GC, and checks that every tree is gone that is not published: none was forgotten.
func (w *world) mustKeepOnlyPublished(repo string) {
	w.t.Helper()
	grace := w.volume.cfg.Grace
	w.volume.cfg.Grace = 1
	for range 3 { // what a crashed holder left is retired by the first, and discarded by the second
		w.syncAt(repo, "")
	}
	w.volume.cfg.Grace = grace
	f := w.volume.folder(repoPath(w.t, repo))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(w.t)
	linked := linkedTrees(testenv.Must(w.volume.allLinks(f, b))(w.t))
	for _, tree := range testenv.Must(disk.ReadDir(f.trees()))(w.t) {
		if !linked[tree.Name()] {
			w.t.Errorf("%s: %s is neither published nor discarded", repo, tree.Name())
		}
	}
}

// A store that was replaced goes with the last tree that uses it, without GC.
func TestReplacedStoreGoesWithItsLastTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume.cfg.Grace = time.Hour
	w.create(map[string]string{"a": "1"})
	for i := range 3 {
		w.push(map[string]string{"a": fmt.Sprint(i)})
		w.sync("")
	}
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, f.generation(1).requestRefetch())(t)
	for i := range 3 {
		w.push(map[string]string{"a": fmt.Sprint("new ", i)})
		w.sync("")
	}
	if n := len(testenv.Must(f.generations())(t)); n != 2 {
		t.Fatalf("%d stores while trees use the old one, want 2", n)
	}
	w.mustKeepOnlyPublished(widgets)
	if got := testenv.Must(filepath.Glob(filepath.Join(f.stores(), "*")))(t); len(got) != 1 || filepath.Base(got[0]) != "2" {
		t.Errorf("stores %v, want the new one", got)
	}
}
