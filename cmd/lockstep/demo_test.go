package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
)

// startDemo starts a demonstration and returns it, its folder for temporary files, and its workers, once it has begun.
func startDemo(t *testing.T, args ...string) (p *process, tmp string, workers []int) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and is no different with another Redis")
	}
	tmp = t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p = start(t, append([]string{"demo"}, args...)...)
	p.awaitLog("all of them cloned")
	return p, tmp, demoWorkers(t, p.log.String())
}

// demoWorkers are the process ids of the workers that a demonstration has told of.
func demoWorkers(t *testing.T, log string) (pids []int) {
	t.Helper()
	for _, match := range regexp.MustCompile(`worker w\d+ started, pid (\d+)`).FindAllStringSubmatch(log, -1) {
		pids = append(pids, must(strconv.Atoi(match[1]))(t))
	}
	if len(pids) < 2 {
		t.Fatalf("workers %v, want two", pids)
	}
	return pids
}

func assertNothingLeft(t *testing.T, tmp string, workers []int) {
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
	if code := p.ended(time.Minute); code != exitFailed || !strings.Contains(p.log.String(), "\nlockstep: interrupt signal received\n") {
		t.Errorf("exit code %d, want 1, and to be told why", code)
	}
	assertNothingLeft(t, tmp, workers)
}

func TestADemoEndsWithTheWorkerItCountsOn(t *testing.T) {
	p, tmp, workers := startDemo(t)
	if err := syscall.Kill(workers[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.ended(time.Minute); code != exitFailed || !strings.Contains(p.log.String(), "lockstep: demo: worker w2 ended by itself: signal: killed\n") {
		t.Errorf("exit code %d, want 1, and to be told why", code)
	}
	assertNothingLeft(t, tmp, workers)
}

func TestTheWorkersOfADemoThatIsKilledDieWithIt(t *testing.T) {
	p, _, workers := startDemo(t)
	p.kill()
	for _, pid := range workers {
		eventually(t, func() bool { return ended(pid) }, "worker %d has ended", pid)
	}
}

// ended reports whether there is no such process, or what is left of it waits for a parent that does not look.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

// On the web it goes on until it is interrupted, and that is no failure.
func TestADemoOnTheWeb(t *testing.T) {
	p, tmp, workers := startDemo(t, "--web")
	found := regexp.MustCompile(`dashboard at (http://127\.0\.0\.1:\d+)/ ; .* log in with (\S+)`).FindStringSubmatch(p.log.String())
	if found == nil {
		t.Fatal("it does not say where it is")
	}
	base, token := found[1], found[2]
	get := func(path, token string) int {
		t.Helper()
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil))(t)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp := must(http.DefaultClient.Do(req))(t)
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
	_ = p.cmd.Process.Signal(os.Interrupt)
	if code := p.ended(time.Minute); code != exitDone || !strings.Contains(p.log.String(), "\ntrees read") {
		t.Errorf("exit code %d, want 0, and the table", code)
	}
	assertNothingLeft(t, tmp, workers)
}

func TestADemosReaderSeesATreeThatIsNotWhole(t *testing.T) {
	const repo, commit = "demo/hot", "1111111111111111111111111111111111111111"
	for name, tc := range map[string]struct {
		spoil func(tree string) error
		whole bool
	}{
		"whole": {func(string) error { return nil }, true},
		"a file of another": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "dir-3/file-3"), []byte(demoText(repo, 2)), 0o644)
		}, false},
		"a file cut short":  {func(tree string) error { return os.Truncate(filepath.Join(tree, "dir-3/file-3"), 3) }, false},
		"a file is missing": {func(tree string) error { return os.Remove(filepath.Join(tree, "dir-3/file-3")) }, false},
		"one too many": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, "new"), []byte(demoText(repo, 1)), 0o644)
		}, false},
		"it says another": {func(tree string) error {
			return os.WriteFile(filepath.Join(tree, ".git/lockstep-commit"), []byte("2"), 0o644)
		}, false},
		"it does not say which": {func(tree string) error { return os.RemoveAll(filepath.Join(tree, ".git")) }, false},
		"there is none":         {os.RemoveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &demo{root: t.TempDir(), board: newDemoBoard([]string{repo})}
			d.board.pushed(repo, 1, commit, 1)
			tree := filepath.Join(d.root, repo)
			for path, text := range demoContents(repo, 1) {
				must(0, os.MkdirAll(filepath.Dir(filepath.Join(tree, path)), 0o755))(t)
				must(0, os.WriteFile(filepath.Join(tree, path), []byte(text), 0o644))(t)
			}
			must(0, os.Mkdir(filepath.Join(tree, ".git"), 0o755))(t)
			must(0, os.WriteFile(filepath.Join(tree, ".git", "lockstep-commit"), []byte(commit+"\n"), 0o644))(t)
			must(0, tc.spoil(tree))(t)
			if err := d.readTree(repo); (err == nil) != tc.whole {
				t.Errorf("error %v, want whole: %v", err, tc.whole)
			}
		})
	}
}

func TestADemosBoardCountsEachResultOnce(t *testing.T) {
	b := newDemoBoard([]string{"demo/hot", "demo/cold"})
	b.stall(time.Now(), b.repos[:1])
	ids := append(b.pushed("demo/hot", 1, "a", 2), b.pushed("demo/cold", 1, "b", 1)...)
	synced := func(id, after string) events.Result {
		return events.Result{Type: events.ResultSynced, Deliveries: []string{id}, After: after}
	}
	b.settled(synced(ids[0], "a"), time.Now())
	b.settled(synced(ids[0], "a"), time.Now())
	b.settled(synced("of a watch", "a"), time.Now())
	b.settled(events.Result{Type: events.ResultFailed, Deliveries: ids[2:]}, time.Now())
	b.readOne(nil)
	b.readOne(errors.New("torn"))
	if b.results != 2 || b.doubled != 1 || b.failed != 1 || b.unsettled() != 1 || b.reads != 2 || b.torn != 1 {
		t.Errorf("%d results, %d doubled, %d failed, %d unsettled, %d reads, %d torn; want 2, 1, 1, 1, 2, 1",
			b.results, b.doubled, b.failed, b.unsettled(), b.reads, b.torn)
	}
	if hot, cold := b.repos[0], b.repos[1]; hot.published != 1 || cold.published != 0 || len(b.delayed) != 1 || len(hot.latencies) != 0 || len(cold.latencies) != 1 {
		t.Errorf("published %d and %d, %d delayed; want 1, 0, and the hot one's alone", hot.published, cold.published, len(b.delayed))
	}
}
