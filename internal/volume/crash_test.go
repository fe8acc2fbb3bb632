package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/git/lfs"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

var steps = []string{"fenced", "bound", "listed", "fetched", "moved", "checked", "taken", "checked out", "indexed", "built", "confirmed", "flipped", "retired"}

// TestKilledAtEveryStep kills a process at each step of a first or a later sync, and checks that readers see a complete
// tree and that the next sync repairs the rest.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_DIE_ROOT"); root != "" {
		dieAtStep(t, root)
		return
	}
	for i, step := range steps {
		for _, first := range testenv.Form([]bool{i%2 == 0}, []bool{true, false}) {
			if first && step == "taken" {
				continue // nothing is prepared
			}
			t.Run(fmt.Sprintf("%s/first=%v", step, first), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				old := w.create(map[string]string{"a": "1", "same": "same"})
				if !first {
					w.sync("")
					w.prepare()
					old = w.push(map[string]string{"a": "2"})
				}
				before := w.published()

				w.dieAt(step)

				after := w.published()
				if flipped := step == "flipped" || step == "retired"; flipped != (after != before) {
					t.Errorf("published %q before and %q after", before, after)
				}
				if after != "" {
					w.mustBeSound(widgets, after)
				}
				res := w.sync("")
				if res.After != old {
					t.Errorf("the next sync published %s", res.After)
				}
				w.mustBeSound(widgets, old)
				mustBeTidy(t, w)
				next := w.push(map[string]string{"a": "3"})
				w.sync("")
				w.mustBeSound(widgets, next)
				w.mustKeepOnlyPublished(widgets)
			})
		}
	}
}

// published returns the commit that readers see, or "".
func (w *world) published() string {
	return w.publishedAt(widgets)
}

// publishedAt is like published, for any repository.
func (w *world) publishedAt(repo string) string {
	f := w.volume.folder(repoPath(w.t, repo))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(w.t)
	return w.volume.current(f, b, repo).commit
}

// dieAt runs a sync in a child process, which kills itself at the step.
func (w *world) dieAt(step string) {
	w.t.Helper()
	w.die(step, w.git.URL(widgets))
}

// die is dieAt for a sync from url, or for a preparation if url is empty.
func (w *world) die(step, url string) {
	w.t.Helper()
	w.mustBeKilled(w.dying(step, url), step)
}

// dying returns the command of a process that kills itself at the step of a sync.
func (w *world) dying(step, url string) *exec.Cmd {
	cmd := exec.CommandContext(testenv.Context(w.t), os.Args[0], "-test.run=^TestKilledAtEveryStep$")
	cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_DIE_ROOT="+w.volume.Root(), "LOCKSTEP_TEST_DIE_STEP="+step,
		"LOCKSTEP_TEST_DIE_URL="+url, fmt.Sprintf("LOCKSTEP_TEST_DIE_FENCE=%d", w.fence.Add(1)))
	return cmd
}

func (w *world) mustBeKilled(cmd *exec.Cmd, step string) {
	w.t.Helper()
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.t.Fatalf("the process was not killed at %s: %v\n%s", step, err, out)
	}
}

func dieAtStep(t *testing.T, root string) {
	v := testenv.Must(OpenVolume(root, Config{}))(t)
	v.cfg.Step = killAt(os.Getenv("LOCKSTEP_TEST_DIE_STEP"))
	var fence uint64
	testenv.Must(fmt.Sscan(os.Getenv("LOCKSTEP_TEST_DIE_FENCE"), &fence))(t)
	var err error
	if os.Getenv("LOCKSTEP_TEST_DIE_PURGE") != "" {
		err = v.Purge(t.Context(), repoPath(t, widgets), fence, "")
	} else if url := os.Getenv("LOCKSTEP_TEST_DIE_URL"); url != "" {
		selection := testenv.Must(lfs.ParseSelection(os.Getenv("LOCKSTEP_TEST_DIE_LFS")))(t)
		_, err = v.Sync(t.Context(), SyncRequest{
			Repo: repoPath(t, widgets), URL: url, Fence: fence, LFS: selection, Check: admitAll, Submodules: events.Submodules(os.Getenv("LOCKSTEP_TEST_DIE_SUBMODULES")),
		})
	} else {
		_, err = v.Prepare(t.Context(), PrepareRequest{
			Repo: repoPath(t, widgets), Ref: testenv.Must(events.ParseRef(gitserver.Main))(t), Fence: fence,
		})
	}
	t.Fatalf("not killed: %v", err)
}

// killAt kills this process at a step.
func killAt(last string) func(step string) {
	return func(step string) {
		if step == last {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// TestKilledWhilePreparing kills a process at each step of a preparation.
func TestKilledWhilePreparing(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"linked", "prepared"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old := w.create(map[string]string{"a": "1", "same": "same"})
			w.sync("")

			w.die(step, "")

			w.mustBeSound(widgets, old)
			if prepared := step == "prepared"; w.isPrepared(widgets) != prepared {
				t.Errorf("prepared: %v", !prepared)
			}
			next := w.push(map[string]string{"a": "2"})
			w.sync("")
			w.mustBeSound(widgets, next)
			mustBeTidy(t, w)
			w.prepare()
			last := w.push(map[string]string{"a": "3"})
			w.sync("")
			w.mustBeSound(widgets, last)
			w.mustVerify()
		})
	}
}

// TestStaleAtEveryStep syncs as a newer holder after each step of an older one. The older one must fail and change nothing.
func TestStaleAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, step := range steps[:slices.Index(steps, "flipped")] { // after flipped, the stale holder has already published
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1", "same": "same"})
			w.sync("")
			w.prepare()
			w.push(map[string]string{"a": "2"})
			stale := w.request("")
			stale.Check = admitAll
			slow := w.open(w.volume.Root(), Config{})
			var newest string
			slow.cfg.Step = func(at string) {
				if at == step {
					newest = w.push(map[string]string{"a": "3"})
					w.sync("")
				}
			}

			_, err := slow.Sync(t.Context(), stale)

			if !errors.Is(err, ErrStale) {
				t.Fatalf("got %v", err)
			}
			testenv.MustFail(t, err, events.ClassBusy, events.Contention)
			w.mustBeSound(widgets, newest)
			mustBeTidy(t, w)
			_, err = slow.Sync(t.Context(), stale)
			testenv.MustFail(t, err, events.ClassBusy, events.Contention)
			next := w.push(map[string]string{"a": "4"})
			w.sync("")
			w.mustBeSound(widgets, next)
		})
	}
}

func TestFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(nil)
	repo := repoPath(t, widgets)
	if floor := testenv.Must(w.volume.Floor(repo))(t); floor != 0 {
		t.Errorf("floor %d before any sync", floor)
	}
	w.fence.Store(41)
	w.sync("")
	if floor := testenv.Must(w.volume.Floor(repo))(t); floor != 42 {
		t.Errorf("floor %d", floor)
	}
	req := w.request("")
	req.Fence = 7
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if !strings.Contains(err.Error(), "42") {
		t.Errorf("the error does not name the newer fence: %v", err)
	}
}

// TestTwoHoldersAtOnce runs two volumes over one root, with increasing fences.
func TestTwoHoldersAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0", "same": "same"})
	var g errgroup.Group
	for range 2 {
		v := w.open(w.volume.Root(), Config{})
		g.Go(func() error {
			for range 8 {
				if _, err := v.Sync(t.Context(), w.request("")); err != nil && !errors.Is(err, ErrStale) {
					return err
				}
			}
			return nil
		})
	}
	for i := range 10 {
		w.push(map[string]string{"a": fmt.Sprint(i)})
	}
	testenv.Must(0, g.Wait())(t)
	last := w.push(map[string]string{"a": "last"})
	w.sync("")
	w.mustBeSound(widgets, last)
	mustBeTidy(t, w)
}

// TestReadersSeeOneVersion reads all files of the published tree in a loop while others are published.
func TestReadersSeeOneVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	version := func(n int) map[string]string {
		files := map[string]string{}
		for i := range 12 {
			files[fmt.Sprintf("dir%d/file%d", i%3, i)] = fmt.Sprint(n)
		}
		return files
	}
	w.create(version(0))
	w.sync("")
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	var reads, torn int
	reading.Go(func() {
		for ctx.Err() == nil {
			reads++
			time.Sleep(testenv.Form(200*time.Microsecond, 0))
			if err := readOneVersion(w.path(widgets), 12); err != nil {
				torn++
				t.Error(err)
			}
		}
	})
	for n := range testenv.Form(10, 50) {
		w.push(version(n + 1))
		w.sync("")
	}
	stop()
	reading.Wait()
	t.Logf("%d reads, %d torn", reads, torn)
}

// readOneVersion resolves the name once and reads everything below.
func readOneVersion(name string, want int) error {
	root, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "dir*", "file*"))
	if err != nil || len(files) != want {
		return fmt.Errorf("%d files: %w", len(files), err)
	}
	var first []byte
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if first == nil {
			first = content
		}
		if !bytes.Equal(content, first) {
			return fmt.Errorf("%s has version %s, not %s", file, content, first)
		}
	}
	return nil
}

func TestRetiredTreesAreDeletedAfterGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	v := w.volume
	first := w.sync("")
	w.push(map[string]string{"a": "2"})
	second := w.sync("")
	if _, err := os.Stat(w.path(first.Tree)); err != nil {
		t.Errorf("the replaced tree went at once: %v", err)
	}
	w.volume = w.open(v.Root(), Config{Grace: 1})
	w.sync("")
	if _, err := os.Stat(w.path(first.Tree)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the replaced tree outlived its grace: %v", err)
	}
	w.mustBeSound(second.Path, second.After)
}

// The holder of the file lock may be stopped, so the next one waits only for a limited time.
func TestFileLockTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	unlock := testenv.Must(lockFile(t.Context(), w.volume.folder(repoPath(t, widgets)).lock()))(t)
	_, err := w.trySync("")
	unlock()
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	w.sync("")
}
