package volume

import (
	"bytes"
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

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestStoppedAtEveryStep stops a process at each step of a sync, and resumes it while a newer holder fetches or after the newer
// holder has published. The stopped process must fail as stale and leave nothing behind.
func TestStoppedAtEveryStep(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("LOCKSTEP_TEST_STOP_ROOT"); root != "" {
		stopAtStep(t, root)
		return
	}
	for i, step := range steps {
		for _, fetching := range testenv.Form([]bool{i%2 == 0}, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/fetching=%v", step, fetching), func(t *testing.T) {
				t.Parallel()
				g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
				w := newWorld(t, gitserver.WithBefore(g.pass))
				w.create(map[string]string{"a": "1", "same": "same"})
				w.sync("")
				w.prepare()
				w.push(map[string]string{"a": "2"})
				stopped := w.stopAt(step)
				newest := w.push(map[string]string{"a": "3"})

				synced := make(chan error, 1)
				g.arm(fetching)
				go func() {
					_, err := w.trySync("")
					synced <- err
				}()
				if fetching {
					<-g.reached
					stopped.resume(t, step)
					close(g.open)
					testenv.Must(0, <-synced)(t)
				} else {
					testenv.Must(0, <-synced)(t)
					stopped.resume(t, step)
				}

				w.mustBeSound(widgets, newest)
				w.mustVerify()
				next := w.push(map[string]string{"a": "4"})
				w.sync("")
				w.mustBeSound(widgets, next)
				w.mustVerify()
				mustBeTidy(t, w)
			})
		}
	}
}

func (w *world) mustVerify() {
	w.t.Helper()
	report := testenv.Must(w.volume.Verify(w.t.Context(), VerifyRequest{Repo: repoPath(w.t, widgets), Fence: w.fence.Load()}))(w.t)
	if report.Found > 0 || report.Objects == 0 || report.Files == 0 {
		w.t.Errorf("verify: %+v", report)
	}
}

// gate delays the first fetch after it is armed.
type gate struct {
	mu      sync.Mutex
	armed   bool
	reached chan struct{}
	open    chan struct{}
}

func (g *gate) arm(armed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = armed
}

func (g *gate) pass(ctx context.Context, _, service string) {
	g.mu.Lock()
	held := g.armed && service == "git-upload-pack"
	if held {
		g.armed = false
	}
	g.mu.Unlock()
	if held {
		close(g.reached)
		select {
		case <-g.open:
		case <-ctx.Done():
		}
	}
}

// stoppedSync is a sync in a child process that has stopped itself.
type stoppedSync struct {
	cmd *exec.Cmd
	out *bytes.Buffer
}

func (w *world) stopAt(step string) stoppedSync {
	w.t.Helper()
	cmd := exec.CommandContext(testenv.Context(w.t), os.Args[0], "-test.run=^TestStoppedAtEveryStep$")
	cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_STOP_ROOT="+w.volume.Root(), "LOCKSTEP_TEST_STOP_STEP="+step,
		"LOCKSTEP_TEST_STOP_URL="+w.git.URL(widgets), fmt.Sprintf("LOCKSTEP_TEST_STOP_FENCE=%d", w.fence.Add(1)))
	s := stoppedSync{cmd, &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = s.out, s.out
	testenv.Must(0, cmd.Start())(w.t)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			w.t.Fatalf("the process was not stopped at %s: %v, %v\n%s", step, err, status, s.out)
		}
		return s
	}
}

// resume resumes the process and waits for it. The process must fail as stale unless it had published.
func (s stoppedSync) resume(t *testing.T, step string) {
	t.Helper()
	testenv.Must(0, s.cmd.Process.Signal(syscall.SIGCONT))(t)
	err := s.cmd.Wait()
	if slices.Index(steps, step) >= slices.Index(steps, "flipped") {
		if err != nil {
			t.Errorf("the process ended with %v and output\n%s", err, s.out)
		}
		return
	}
	if err == nil || !strings.Contains(s.out.String(), ErrStale.Error()+" with fence") || !strings.Contains(s.out.String(), "class busy") {
		t.Errorf("the process ended with %v and output\n%s", err, s.out)
	}
}

func stopAtStep(t *testing.T, root string) {
	v := testenv.Must(OpenVolume(root, Config{}))(t)
	defer v.Close()
	v.cfg.Step = func(step string) {
		if step == os.Getenv("LOCKSTEP_TEST_STOP_STEP") {
			runtime.LockOSThread() // stop this thread at once, before other threads continue
			_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
			runtime.UnlockOSThread()
		}
	}
	var fence uint64
	testenv.Must(fmt.Sscan(os.Getenv("LOCKSTEP_TEST_STOP_FENCE"), &fence))(t)
	_, err := v.Sync(t.Context(), SyncRequest{Repo: repoPath(t, widgets), URL: os.Getenv("LOCKSTEP_TEST_STOP_URL"), Fence: fence, Check: admitAll})
	if err != nil {
		t.Fatalf("class %s: %v", events.ClassOf(err), err)
	}
}
