package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// partSteps are the steps of a sync that fetches a submodule.
var partSteps = []string{"part", "parts"}

// mixed returns a submodule's file and a file of the repository, which every version changes together.
func (w *world) mixed() [2]string {
	tree := readTree(w.t, w.path(widgets))
	return [2]string{tree["a"], tree["sub/l"]}
}

// TestKilledAtEveryStepWithSubmodules kills a process at each step of a sync that fetches a submodule. Readers see the files of one
// version.
func TestKilledAtEveryStepWithSubmodules(t *testing.T) {
	t.Parallel()
	for _, step := range testenv.Form(append([]string{"checked out", "flipped"}, partSteps...), slices.Concat(partSteps, steps)) {
		for _, first := range testenv.Form([]bool{false}, []bool{true, false}) {
			if first && step == "taken" {
				continue // nothing is prepared
			}
			t.Run(fmt.Sprintf("%s/first=%v", step, first), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				lib := w.createAt("acme/lib", map[string]string{"l": "1"})
				testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
				commit := w.withParts(widgets, map[string]string{"sub": lib}, map[string]string{"sub": "../lib.git"}, map[string]string{"a": "1"})
				last := [2]string{"1", "1"}
				if !first {
					w.syncParts(events.SubmodulesRequired)
					w.prepare()
					lib = w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "2"}})
					commit = w.commit(gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}, Submodule: map[string]string{"sub": lib}})
					last = [2]string{"2", "2"}
				}
				cmd := w.dying(step, w.git.URL(widgets))
				cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_SUBMODULES=required")
				w.mustBeKilled(cmd, step)

				if after := w.published(); after != "" {
					w.mustBeSound(widgets, after)
					if got := w.mixed(); got[0] != got[1] {
						t.Errorf("readers see %q", got)
					}
				}
				fetches := w.uploads("acme/lib")
				w.syncParts(events.SubmodulesRequired)
				if got := w.mixed(); got != last {
					t.Errorf("the next sync published %q", got)
				}
				stored := step == "part" || step == "parts" || slices.Index(steps, step) >= slices.Index(steps, "taken")
				if n := w.uploads("acme/lib") - fetches; stored && n > 0 {
					t.Errorf("fetched the submodule again: %d", n)
				}
				w.mustBeSound(widgets, commit)
				w.mustBeAsCloned(step)
				mustBeTidy(t, w)
			})
		}
	}
}

// TestStaleWithSubmodules syncs as a newer holder while an older one has fetched a submodule.
func TestStaleWithSubmodules(t *testing.T) {
	t.Parallel()
	for _, step := range append([]string{"checked out"}, partSteps...) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.simple()
			w.syncParts(events.SubmodulesRequired)
			w.prepare()
			update := func(content string) {
				lib := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": content}})
				w.commit(gitserver.Main, gitserver.Edit{Write: map[string]string{"a": content}, Submodule: map[string]string{"sub": lib}})
			}
			update("2")
			stale := w.requestParts(events.SubmodulesRequired)
			slow := w.open(w.volume.Root(), Config{})
			slow.cfg.Step = func(at string) {
				if at == step {
					update("3")
					w.syncParts(events.SubmodulesRequired)
				}
			}
			_, err := slow.Sync(t.Context(), stale)
			if !errors.Is(err, ErrStale) {
				t.Fatalf("got %v", err)
			}
			testenv.MustFail(t, err, events.ClassBusy, events.Contention)
			w.mustBeAsCloned(step)
			mustBeTidy(t, w)
		})
	}
}

// TestReadersSeeOneVersionOfSubmodules reads the published tree in a loop while versions of both repositories are published.
func TestReadersSeeOneVersionOfSubmodules(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	lib := w.createAt("acme/lib", map[string]string{"dir1/file": "0"})
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	w.withParts(widgets, map[string]string{"dir0": lib}, map[string]string{"dir0": "../lib.git"}, map[string]string{"dir1/file": "0", "dir2/file0": "0"})
	w.syncParts(events.SubmodulesRequired)
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			root, err := filepath.EvalSymlinks(w.path(widgets))
			if err != nil {
				t.Error(err)
				return
			}
			own, err := os.ReadFile(filepath.Join(root, "dir1/file"))
			part, partErr := os.ReadFile(filepath.Join(root, "dir0/dir1/file"))
			if string(own) != string(part) || err != nil || partErr != nil {
				t.Errorf("the repository has version %q, %v, and the submodule %q, %v", own, err, part, partErr)
			}
		}
	})
	for n := range testenv.Soak(15, 50) {
		content := fmt.Sprint(n + 1)
		lib := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"dir1/file": content}})
		w.commit(gitserver.Main, gitserver.Edit{Write: map[string]string{"dir1/file": content}, Submodule: map[string]string{"dir0": lib}})
		w.syncParts(events.SubmodulesRequired)
	}
	stop()
	reading.Wait()
	w.mustBeAsCloned("the last")
}
