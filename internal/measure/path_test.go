package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

const (
	rounds     = 3
	repo       = "acme/widgets"
	hookSecret = "a secret of the source, to measure with"
)

// crossed is what one push crosses between its webhook and its result.
type crossed struct {
	functions map[string][]string // by file
	packages  map[string]bool
	scripts   map[string]int // SHA-1 of a Lua script → calls
}

func (c crossed) counts() []int {
	functions, calls := 0, 0
	for _, names := range c.functions {
		functions += len(names)
	}
	for _, n := range c.scripts {
		calls += n
	}
	return []int{functions, len(c.functions), len(c.packages), len(c.scripts), calls}
}

// TestPathOfAPush prints how many functions, files, packages and Lua scripts one push crosses: the medians of three services. It fails if it
// cannot measure them; the figures are for a person to judge. make measure runs it. LOCKSTEP_MEASURE=list lists the functions by file.
func TestPathOfAPush(t *testing.T) {
	if os.Getenv("LOCKSTEP_MEASURE") == "" {
		t.Skip("measures and judges nothing: run make measure")
	}
	binary := filepath.Join(t.TempDir(), "lockstep")
	build := exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg=lockstep/...", "-o", binary, "./covered")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var each [][]int
	var last crossed
	for range rounds {
		last = pushOnce(t, binary)
		t.Log(last.counts())
		each = append(each, last.counts())
	}
	median := func(i int) int {
		slices.SortFunc(each, func(a, b []int) int { return a[i] - b[i] })
		return each[rounds/2][i]
	}
	t.Logf("one push crosses %d functions in %d files of %d packages, and calls %d Lua scripts %d times (medians of %d)",
		median(0), median(1), median(2), median(3), median(4), rounds)
	t.Logf("packages: %s", strings.Join(slices.Sorted(maps.Keys(last.packages)), " "))
	if os.Getenv("LOCKSTEP_MEASURE") == "list" {
		for _, file := range slices.Sorted(maps.Keys(last.functions)) {
			t.Logf("%s: %s", file, strings.Join(last.functions[file], " "))
		}
	}
}

// pushOnce starts a service, publishes a first commit, and returns what the push of the second one crosses.
func pushOnce(t *testing.T, binary string) crossed {
	t.Helper()
	dir := t.TempDir()
	counters, source := filepath.Join(dir, "counters"), filepath.Join(dir, "hooks", "hub")
	for _, folder := range []string{counters, source} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"forge": "github", "secret": hookSecret} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git, server := proctest.StartGit(t), redistest.StartReal(t)
	files := map[string]string{}
	for n := range 60 {
		files[fmt.Sprintf("dir%d/file%d.txt", n%6, n)] = strings.Repeat(fmt.Sprintln("line", n), 20)
	}
	proctest.Must(git.Create(t.Context(), repo, files))(t)

	lockstep := func(args ...string) *exec.Cmd {
		cmd := exec.Command(binary, append(args, "--redis", server.URL())...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOCOVERDIR="+counters)
		return cmd
	}
	if out, err := lockstep("watch", "add", git.URL(repo), "--app", "docs").CombinedOutput(); err != nil {
		t.Fatalf("watch add: %v\n%s", err, out)
	}
	service := proctest.StartCommand(t, lockstep("serve", "--root", filepath.Join(dir, "repos"), "--hooks", filepath.Dir(source), "--listen", "127.0.0.1:0"))
	address := service.ListenAddress("listening")

	push := func(n int) {
		commit := proctest.Must(git.Commit(t.Context(), repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"dir1/file1.txt": fmt.Sprintln("push", n)}}))(t)
		deliver(t, address, git.URL(repo), commit, n)
		awaitResult(t, server.Client(), commit)
	}
	push(1)
	time.Sleep(3 * time.Second) // the worker prepares the next tree after a push; that belongs to the first one
	ended := proctest.Must(filepath.Glob(filepath.Join(counters, "covcounters.*")))(t)
	for _, path := range ended {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	scripts := watchScripts(t, server.Addr)
	send(t, service, syscall.SIGWINCH)
	push(2)
	send(t, service, syscall.SIGIO)
	c := read(t, counters)
	c.scripts = scripts()
	return c
}

// send sends a signal of command covered and waits until it has acted.
func send(t *testing.T, p *proctest.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	p.AwaitLog("counters: " + s.String())
}

// deliver posts the webhook of a push.
func deliver(t *testing.T, address, url, commit string, n int) {
	t.Helper()
	body := fmt.Sprintf(`{"ref":"refs/heads/main","before":"%040d","after":%q,"repository":{"full_name":%q,"clone_url":%q,"default_branch":"main"}}`, 0, commit, repo, url)
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	req := proctest.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/hooks/hub", strings.NewReader(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Event", "push")
	req.Header.Set("X-GitHub-Delivery", fmt.Sprint("delivery-", n))
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	resp := proctest.Must(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	if answer := proctest.Must(io.ReadAll(resp.Body))(t); resp.StatusCode != http.StatusAccepted {
		t.Fatalf("webhook: %s: %s", resp.Status, answer)
	}
}

// awaitResult returns once a result names the commit.
func awaitResult(t *testing.T, client redis.UniversalClient, commit string) {
	t.Helper()
	for from := "0"; ; {
		read, err := client.XRead(t.Context(), &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Block: time.Minute}).Result()
		if err != nil {
			t.Fatalf("no result of %s: %v", commit, err)
		}
		for _, entry := range read[0].Messages {
			if from = entry.ID; strings.Contains(fmt.Sprint(entry.Values["payload"]), commit) {
				return
			}
		}
	}
}

// watchScripts counts the scripts that Redis runs, until the returned function is called.
func watchScripts(t *testing.T, address string) func() map[string]int {
	t.Helper()
	conn := proctest.Must(net.Dial("tcp", address))(t)
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	if line := proctest.Must(lines.ReadString('\n'))(t); line != "+OK\r\n" {
		t.Fatalf("MONITOR: %q", line)
	}
	called := map[string]int{}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if fields := strings.Fields(line); len(fields) > 4 && strings.EqualFold(fields[3], `"evalsha"`) {
				called[fields[4]]++
			}
		}
	})
	return func() map[string]int {
		_ = conn.Close()
		ended.Wait()
		return called
	}
}

// read returns the functions of the product whose counters are not zero.
func read(t *testing.T, dir string) crossed {
	t.Helper()
	out := proctest.Must(exec.Command("go", "tool", "covdata", "func", "-i="+dir).Output())(t)
	c := crossed{functions: map[string][]string{}, packages: map[string]bool{}}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] == "0.0%" || fields[0] == "total" {
			continue
		}
		file, _, _ := strings.Cut(strings.TrimPrefix(fields[0], "lockstep/"), ":")
		if kindOf(file) != "product" {
			continue
		}
		c.functions[file], c.packages[filepath.Dir(file)] = append(c.functions[file], fields[1]), true
	}
	if len(c.functions) == 0 {
		t.Fatalf("no function ran between the webhook and the result:\n%s", proctest.Tail(string(out), 1000))
	}
	return c
}
