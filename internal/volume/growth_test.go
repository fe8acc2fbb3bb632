package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestManyPushes publishes many pushes and checks that the disk usage stays below three times that of a fresh clone.
// With LOCKSTEP_SOAK it publishes 1,000 pushes. It logs how the fetch time changes.
func TestManyPushes(t *testing.T) {
	t.Parallel()
	testenv.SkipUnderRace(t)
	pushes, each := testenv.Soak(testenv.Form(30, 150), 1000), testenv.Form(15, 50)
	w := newWorld(t)
	var at time.Time
	var fetches []time.Duration
	w.volume = w.open(t.TempDir(), Config{Grace: 1, Step: func(step string) {
		if step == "fetched" {
			fetches = append(fetches, time.Since(at))
		}
		at = time.Now()
	}})
	random := rand.New(rand.NewPCG(1, 2))
	content := func() string {
		text := make([]byte, 2000+random.IntN(4000))
		for i := range text {
			text[i] = byte('a' + random.IntN(16))
		}
		return string(text)
	}
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("d%d/f%d", i%20, i)] = content()
	}
	w.create(files)
	w.sync("")
	most := int64(0)
	for i := range pushes {
		edit := map[string]string{}
		for range 3 {
			n := random.IntN(200)
			edit[fmt.Sprintf("d%d/f%d", n%20, n)] = content()
		}
		commit := w.push(edit)
		w.sync("")
		if i%each == each-1 {
			testenv.Must(w.git.Git(t.Context(), widgets, "", "repack", "-adq"))(t) // so that the server does not slow down
			w.volume.AwaitDeletions()
			most = max(most, diskUse(t, w.volume.folder(repoPath(t, widgets)).dir))
			w.mustBeSound(widgets, commit)
		}
	}
	clone := t.TempDir()
	testenv.Must(gitserver.Git(t.Context(), clone, "", "clone", "--quiet", "--depth=1", w.git.URL(widgets), "."))(t)
	fresh := diskUse(t, clone)
	first, last := median(fetches[1:each+1]), median(fetches[len(fetches)-each:])
	t.Logf("%d pushes: at most %d bytes, %.1f times a fresh clone; a fetch took %v at first and %v at last", pushes, most,
		float64(most)/float64(fresh), first, last)
	if most > 3*fresh {
		t.Errorf("%d bytes on disk; a fresh clone takes %d", most, fresh)
	}
	w.mustVerify()
}

func median(all []time.Duration) time.Duration {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

// diskUse returns the disk usage of a folder; a file with several hard links counts once, and one that is deleted meanwhile not at
// all.
func diskUse(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
