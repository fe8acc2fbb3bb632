package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startDemo starts a demonstration and returns it, its folder for temporary files, and its workers.
func startDemo(t *testing.T) (p *process, tmp string, workers [2]int) {
	t.Helper()
	tmp = t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p = start(t, "demo")
	p.awaitLog("repositories cloned")
	_, line, _ := strings.Cut(p.log.String(), "two workers (")
	if _, err := fmt.Sscanf(line, "pid %d, %d)", &workers[0], &workers[1]); err != nil {
		t.Fatal(err)
	}
	return p, tmp, workers
}

func assertNothingLeft(t *testing.T, tmp string, workers [2]int) {
	t.Helper()
	if left := must(os.ReadDir(tmp))(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, pid := range workers {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("worker %d goes on", pid)
		}
	}
}

func TestADemoThatIsInterruptedLeavesNothingBehind(t *testing.T) {
	p, tmp, workers := startDemo(t)
	_ = p.cmd.Process.Signal(os.Interrupt)
	if code := p.ended(30 * time.Second); code != exitFailed || !strings.Contains(p.log.String(), "\nlockstep: interrupt signal received\n") {
		t.Errorf("exit code %d, want 1, and to be told why", code)
	}
	assertNothingLeft(t, tmp, workers)
}

func TestADemoEndsWithTheWorkerItCountsOn(t *testing.T) {
	p, tmp, workers := startDemo(t)
	if err := syscall.Kill(workers[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(30 * time.Second); code != exitFailed || !strings.Contains(p.log.String(), "lockstep: demo: worker w2 ended by itself: signal: killed\n") {
		t.Errorf("exit code %d, want 1, and to be told why", code)
	}
	assertNothingLeft(t, tmp, workers)
}
