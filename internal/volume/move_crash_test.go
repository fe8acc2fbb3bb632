package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

var moveSteps = []string{"fenced", "listed", "bound", "linked", "checked out", "indexed", "built", "confirmed", "flipped", "published", "left"}

// TestMoveKilledAtEveryStep kills a process at each step of a move, while readers read both names. Both names must link to
// complete trees, or the new one may be missing, and the same request must complete the move, also after a sync of the new
// name.
func TestMoveKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_MOVE_DIE_ROOT"); root != "" {
		moveInProcess(t, root, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} })
		return
	}
	for i, step := range moveSteps {
		for _, synced := range testenv.Form([]bool{i%2 == 0}, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/synced=%v", step, synced), func(t *testing.T) {
				t.Parallel()
				w, main, v1 := newMoving(t)
				stop := w.read()

				cmd, out := w.moveProcess("TestMoveKilledAtEveryStep", "DIE", step)
				err := cmd.Run()
				exit, ok := errors.AsType[*exec.ExitError](err)
				if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the process was not killed at %s: %v\n%s", step, err, out)
				}

				for _, suffix := range []string{"", "@v1"} {
					want := map[string]string{"": main, "@v1": v1}[suffix]
					w.mustBeSound(widgets+suffix, want)
					if isThere(t, w.path(gadgets+suffix)) {
						w.mustBeSound(gadgets+suffix, want)
					}
				}
				if synced {
					w.syncAt(gadgets, "")
					w.mustBeSound(gadgets, main)
				}
				testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
				stop()
				w.mustBeMoved(main, v1)
			})
		}
	}
}

// TestMoveStoppedAtEveryStep stops a process at each step of a move, lets newer holders sync either name or repeat the
// move, and resumes the process.
func TestMoveStoppedAtEveryStep(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_MOVE_STOP_ROOT"); root != "" {
		moveInProcess(t, root, func() {
			runtime.LockOSThread() // stop this thread at once, before other threads continue
			_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
			runtime.UnlockOSThread()
		})
		return
	}
	for i, step := range moveSteps {
		names := []string{"the same move", "a sync of the new name", "a sync of the old name"}
		for _, name := range testenv.Form(names[i%3:][:1], names) {
			meanwhile := map[string]func(w *world){
				"the same move":          func(w *world) { testenv.Must(0, w.volume.Move(w.t.Context(), w.move()))(w.t) },
				"a sync of the new name": func(w *world) { w.syncAt(gadgets, "") },
				"a sync of the old name": func(w *world) {
					testenv.Must(0, w.git.Alias(widgets, gadgets))(w.t)
					w.sync("")
				},
			}[name]
			t.Run(step+"/"+name, func(t *testing.T) {
				t.Parallel()
				w, main, v1 := newMoving(t)
				stop := w.read()
				cmd, out := w.moveProcess("TestMoveStoppedAtEveryStep", "STOP", step)
				testenv.Must(0, cmd.Start())(t)
				awaitStop(t, cmd)

				meanwhile(w)

				testenv.Must(0, cmd.Process.Signal(syscall.SIGCONT))(t)
				err := cmd.Wait()
				left := !isBefore(step, "left")
				done := left || !isBefore(step, "flipped") && name == "a sync of the new name"
				if done && err != nil || !done && (err == nil || !strings.Contains(out.String(), "class busy")) {
					t.Errorf("the process ended with %v and output\n%s", err, out)
				}
				_, again, _ := w.volume.Published(repoPath(t, widgets)) // the old name was synced again, as if it had not moved
				if left && again {
					stop()
					w.mustBeSound(widgets, main)
					w.mustBeSound(gadgets, main)
					w.mustVerifyAt(widgets)
					w.mustVerifyAt(gadgets)
					return
				}
				testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
				stop()
				w.mustBeMoved(main, v1)
			})
		}
	}
}

// isBefore reports whether step is before other in a move.
func isBefore(step, other string) bool {
	return slices.Index(moveSteps, step) < slices.Index(moveSteps, other)
}

// newMoving returns a world with two published refs, whose repository has been renamed at the remote.
func newMoving(t *testing.T) (w *world, main, v1 string) {
	t.Helper()
	w = newWorld(t)
	files := map[string]string{"dir1/file1": "1", "dir1/file2": "1", "dir2/file3": "1"}
	main = w.create(files)
	v1 = w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	w.sync("")
	w.sync("v1")
	w.rename(widgets, gadgets)
	return w, main, v1
}

// read reads the trees of both names in a loop until stop is called.
func (w *world) read() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var reading sync.WaitGroup
	for _, name := range []string{widgets, gadgets} {
		reading.Go(func() {
			for published := name == widgets; ctx.Err() == nil; {
				time.Sleep(testenv.Form(time.Millisecond, 0))
				err := readOneVersion(w.path(name), 3)
				if published = published || err == nil; err != nil && (published || !errors.Is(err, os.ErrNotExist)) {
					w.t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	w.t.Cleanup(func() { cancel(); reading.Wait() })
	return func() { cancel(); reading.Wait() }
}

// mustBeMoved checks that everything is at the new name: now, after the grace period, and after the next sync.
func (w *world) mustBeMoved(main, v1 string) {
	w.t.Helper()
	w.mustBeSound(gadgets, main)
	w.mustBeSound(gadgets+"@v1", v1)
	w.mustVerifyAt(gadgets)
	w.mustForget(widgets)
	w.mustBeSound(gadgets+"@v1", v1)
	next := testenv.Must(w.git.Commit(w.t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(w.t)
	w.syncAt(gadgets, "")
	w.mustBeSound(gadgets, next)
	w.mustKeepOnlyPublished(gadgets)
	w.mustVerifyAt(gadgets)
	f := w.volume.folder(repoPath(w.t, gadgets))
	for _, dir := range []string{f.building(), f.dir} {
		for _, entry := range testenv.Must(disk.ReadDir(dir))(w.t) {
			if name := entry.Name(); dir == f.building() || strings.HasPrefix(name, flipPrefix) || strings.Contains(name, disk.TempInfix) {
				w.t.Errorf("%s holds %s", dir, name)
			}
		}
	}
}

// moveProcess returns a command that moves in a child process.
func (w *world) moveProcess(test, what, step string) (*exec.Cmd, *strings.Builder) {
	w.t.Helper()
	prefix := "LOCKSTEP_TEST_MOVE_"
	cmd := exec.CommandContext(testenv.Context(w.t), os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), prefix+what+"_ROOT="+w.volume.Root(), prefix+"STEP="+step,
		prefix+"URL="+w.git.URL(gadgets), prefix+"FORMER="+w.git.URL(widgets), fmt.Sprintf("%sFENCES=%d %d", prefix, w.fence.Add(1), w.fence.Add(1)))
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

func moveInProcess(t *testing.T, root string, atStep func()) {
	v := testenv.Must(OpenVolume(root, Config{}))(t)
	defer v.Close()
	reached := false
	v.cfg.Step = func(step string) {
		if step == os.Getenv("LOCKSTEP_TEST_MOVE_STEP") && !reached {
			reached = true
			atStep()
		}
	}
	req := MoveRequest{
		From: repoPath(t, widgets), To: repoPath(t, gadgets), Remote: Remote{URL: os.Getenv("LOCKSTEP_TEST_MOVE_URL")},
		Former: []Remote{{URL: os.Getenv("LOCKSTEP_TEST_MOVE_FORMER")}},
	}
	testenv.Must(fmt.Sscan(os.Getenv("LOCKSTEP_TEST_MOVE_FENCES"), &req.Fence, &req.ToFence))(t)
	if err := v.Move(t.Context(), req); err != nil {
		t.Fatalf("class %s: %v", events.ClassOf(err), err)
	}
}

// awaitStop returns when a process has stopped itself.
func awaitStop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("the process was not stopped: %v, %v", err, status)
		}
		return
	}
}
