package cli

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// startDemo starts a demo and waits until it has cloned its repositories. It returns the directory of its temporary files and
// the process IDs of its workers.
func startDemo(t *testing.T, args ...string) (p *proctest.Process, tmp string, workers []int) {
	t.Helper()
	tmp = t.TempDir()
	cmd := proctest.Command(t, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // see interrupt
	p = proctest.StartCommand(t, cmd)
	p.AwaitLog("all of them cloned")
	return p, tmp, demoWorkers(t, p.Log.String())
}

// interrupt signals the process group, as a terminal does at Ctrl-C. It must not reach the workers and git.
func interrupt(t *testing.T, p *proctest.Process) {
	t.Helper()
	proctest.Must(0, syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGINT))(t)
}

// demoWorkers returns the process IDs of the workers in the log of a demo.
func demoWorkers(t *testing.T, log string) (pids []int) {
	t.Helper()
	for _, match := range regexp.MustCompile(`worker w\d+ started, pid (\d+)`).FindAllStringSubmatch(log, -1) {
		pids = append(pids, proctest.Must(strconv.Atoi(match[1]))(t))
	}
	if len(pids) < 2 {
		t.Fatalf("workers %v, want two", pids)
	}
	return pids
}

func assertNothingLeft(t *testing.T, tmp string, workers []int) {
	t.Helper()
	if left := proctest.Must(os.ReadDir(tmp))(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, pid := range workers {
		if !ended(pid) {
			t.Errorf("worker %d is still running", pid)
		}
	}
}

func TestInterruptedDemoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			p, tmp, workers := startDemo(t)
			_ = p.Cmd.Process.Signal(s)
			if code := p.AwaitExit(time.Minute); code != term.ExitFailed || !strings.Contains(p.Log.String(), "\nlockstep: "+s.String()+" signal received\n") {
				t.Errorf("exit code %d, want 1 and the reason", code)
			}
			assertNothingLeft(t, tmp, workers)
		})
	}
}

func TestDemoFailsIfItsWorkerDies(t *testing.T) {
	testenv.Long(t)
	p, tmp, workers := startDemo(t)
	proctest.Must(0, syscall.Kill(workers[1], syscall.SIGKILL))(t)
	if code := p.AwaitExit(time.Minute); code != term.ExitFailed || !strings.Contains(p.Log.String(), "lockstep: demo: worker w2 exited unexpectedly: signal: killed\n") {
		t.Errorf("exit code %d, want 1 and the reason", code)
	}
	assertNothingLeft(t, tmp, workers)
}

func TestWorkersDieWithKilledDemo(t *testing.T) {
	testenv.Long(t)
	p, _, workers := startDemo(t)
	p.Kill()
	for _, pid := range workers {
		proctest.Eventually(t, func() bool { return ended(pid) }, "worker %d has ended", pid)
	}
}

// ended reports whether a process has exited. Without a parent that waits for it, it stays a zombie.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

// A web demo runs until it is interrupted, and exits with 0.
func TestWebDemo(t *testing.T) {
	testenv.Long(t)
	p, tmp, workers := startDemo(t, "--web")
	found := regexp.MustCompile(`(?m)^.*dashboard at (http://127\.0\.0\.1:\d+)/\n.*log in with (\S+) to .*$`).FindStringSubmatch(p.Log.String())
	if found == nil {
		t.Fatal("no address and token in the log")
	}
	base, token := found[1], found[2]
	get := func(path, token string) int {
		t.Helper()
		req := proctest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil))(t)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp := proctest.Must(http.DefaultClient.Do(req))(t)
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, tc := range []struct {
		path, token string
		status      int
	}{
		{"/", "", http.StatusOK},
		{"/livez", "", http.StatusOK},
		{"/api/v1/repos/demo/hot", "", http.StatusOK},
		{"/api/v1/watches", "", http.StatusUnauthorized},
		{"/api/v1/watches", token, http.StatusOK},
	} {
		if status := get(tc.path, tc.token); status != tc.status {
			t.Errorf("GET %s: %d, want %d", tc.path, status, tc.status)
		}
	}
	interrupt(t, p)
	if code := p.AwaitExit(time.Minute); code != term.ExitDone || !strings.Contains(p.Log.String(), "\nAll as promised") {
		t.Errorf("exit code %d, want 0 and the table", code)
	}
	assertNothingLeft(t, tmp, workers)
}
