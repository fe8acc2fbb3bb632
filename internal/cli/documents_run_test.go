package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// document is a document whose shell blocks are run in one shell, in order.
type document struct {
	notRun map[string]string // reasons for skipping blocks, by the start of the first line
	exits  map[string]int    // exit codes other than 0, by a part of the line
	given  []string          // commands to run before
	logged string            // what a background command prints in the end
}

// documents has the documents to run.
var documents = map[string]document{
	"README.md": {
		notRun: map[string]string{
			"go run ./cmd/lockstep demo": "testdata/script/demo.txtar and .ci/run run it",
			"make up":                    "starts containers",
		},
	},
	"docs/operations.md": {
		notRun: map[string]string{
			"appendonly yes":               "settings of Redis",
			"scrape_configs:":              "settings of Prometheus",
			"sum by (":                     "a query",
			"curl -s http://worker-1:9090": "names a machine",
			"(echo watches:":               "needs jq; redis_gone_test.go of internal/e2e does the same",
			"# stop all workers;":          "uses another volume",
			"git -C /srv/repos/.lockstep/repos/acme/widgets/adopted": "needs an adopted clone",
			"HOST ":               "output of lockstep status",
			"lockstep hosts ls  ": "needs a blocked host",
		},
		exits: map[string]int{
			"lockstep repos show owner/name": term.ExitFailed, // unknown repository
			"lockstep dead show ID":          term.ExitUsage,
			"lockstep repos purge":           term.ExitUsage, // COMMIT is no commit
		},
		given: runningService,
	},
	"docs/api.md": {
		exits: map[string]int{ // curl exits with 22 on HTTP errors
			"api/v1/changes/1795223511284-0":                   22, // unknown change
			"api/v1/locks/acme/widgets?fence=1795223511284000": 22, // no such lease
			"api/v1/dead/1795223511284-0/retry":                22, // unknown dead letter
		},
		given: []string{"export LOCKSTEP_REDIS=redis://127.0.0.1:6379 LOCKSTEP_ROOT=/srv/repos", "echo a-token-of-the-api > api-token",
			"lockstep serve --listen 127.0.0.1:8080 --api-token-file api-token", "lockstep publish https://git.example.com/acme/widgets.git --wait"},
	},
	"docs/tutorial.md": {
		logged: "lockstep.result.synced.v1 acme/widgets",
	},
	"docs/guides/docs-on-push.md": {},
	"docs/guides/gitops.md": {
		notRun: map[string]string{"lockstep exec acme/widgets@~/deploy/prod -- kubectl": "needs a cluster"},
	},
	"docs/guides/ci-cache.md":      {},
	"docs/guides/from-git-sync.md": {},
	"docs/guides/from-a-pool.md":   {},
	"docs/following.md": {
		notRun: map[string]string{"lockstep follow https://lockstep.example.org --root /srv/copies --token-file token --reader": "needs a second root"},
	},
	"docs/reader.md": {
		notRun: map[string]string{"curl -sN": "does not end; reading_results_test.go of internal/server reads streams", "id: MSB": "what it prints"},
		exits: map[string]int{
			"lockstep tokens rm 3f6b2c91d0aa": term.ExitFailed, // unknown token
			"git clone http://any":            128,             // kept at depth 1
		},
		given: []string{"export LOCKSTEP_REDIS=redis://127.0.0.1:6379 LOCKSTEP_ROOT=/srv/repos", "lockstep serve --roles worker",
			"lockstep watch add https://git.example.com/acme/widgets.git --app docs", "lockstep publish https://git.example.com/acme/widgets.git --app docs --wait",
			"lockstep tokens create --app docs --json | sed 's/.*\"token\":\"//; s/\".*//' > token"},
	},
}

// elsewhere has the documents whose commands are not run here, with the reason.
var elsewhere = map[string]string{
	"docs/watches.md":       "testdata/script/watch_guide.txtar runs it; TestWatchGuideMatchesScript compares",
	"docs/publishing.md":    "the tests of examples/publish run its programs",
	"docs/recipes.md":       "the tests of the examples run its programs",
	"docs/reading.md":       "tested by exec_test.go and package tree",
	"docs/workspaces.md":    "tested by workspace_test.go and testdata/script/workspace.txtar",
	"docs/benchmarks.md":    "its benchmarks take minutes",
	"docs/scaling.md":       "its benchmarks take minutes",
	"docs/security.md":      "needs secrets in /etc and /run",
	"docs/migrating.md":     "needs existing clones and git-sync; the tests of internal/volume adopt clones",
	"docs/failure-modes.md": "mentions commands in a table",
	"docs/dashboard.md":     "needs a proxy and secrets; tested by internal/dashboard",
	"docs/deploying.md":     "needs machines; the tests of deploy check its files",
	"docs/kubernetes.md":    "needs a cluster; the tests of deploy check its objects",
	"docs/releasing.md":     "needs a forge and a registry; make module and .ci/run are run by hand",
}

// runningService starts a service and syncs a repository.
var runningService = []string{
	"export LOCKSTEP_REDIS=redis://127.0.0.1:6379 LOCKSTEP_ROOT=/srv/repos", "lockstep serve", "lockstep publish https://git.example.com/acme/widgets.git --wait"}

// TestCommandsInDocumentsRun runs the commands of the documents in a shell, with a real Redis and a Git server at
// https://git.example.com. It replaces the address of Redis, the directory /srv/repos, addresses to listen on, and the secret
// "…". "go run ./cmd/lockstep" and "go build" use this build, redis-cli finds this Redis, and commands that do not end, such
// as lockstep serve, run in the background.
func TestCommandsInDocumentsRun(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("LOCKSTEP_TEST_REDIS") == "real" {
			t.Fatal("curl is not in PATH; install it")
		}
		t.Skip("needs curl")
	}
	for path, doc := range documents {
		t.Run(filepath.Base(path), func(t *testing.T) { doc.Run(t, path) })
	}
}

// TestEveryDocumentWithCommandsIsRunOrListed checks that each document in docs with commands is in documents or elsewhere.
func TestEveryDocumentWithCommandsIsRunOrListed(t *testing.T) {
	t.Parallel()
	files := append(proctest.Must(filepath.Glob("../../docs/*.md"))(t), proctest.Must(filepath.Glob("../../docs/guides/*.md"))(t)...)
	for _, file := range files {
		path := strings.TrimPrefix(filepath.ToSlash(file), "../../")
		_, listed := elsewhere[path]
		if _, run := documents[path]; run || listed {
			continue
		}
		for _, b := range blocksOf(string(proctest.Must(os.ReadFile(file))(t))) {
			if regexp.MustCompile(`(?m)^(\./)?lockstep [a-z]`).MatchString(strings.Join(b.lines, "\n")) {
				t.Errorf("%s has the command %q, but is neither in documents nor in elsewhere", path, b.lines[0])
				break
			}
		}
	}
}

func (d document) Run(t *testing.T, path string) {
	sh := openShell(t)
	for _, line := range d.given {
		sh.line(line, term.ExitDone)
	}
	used := map[string]bool{}
	listed := func(first string) bool {
		for prefix := range d.notRun {
			if strings.HasPrefix(strings.TrimSpace(first), strings.TrimSpace(prefix)) {
				used[prefix] = true
				return true
			}
		}
		return false
	}
	for _, b := range blocksOf(string(proctest.Must(os.ReadFile("../../" + path))(t))) {
		if !b.isShell() || listed(b.lines[0]) {
			continue
		}
		for _, line := range b.lines {
			want := term.ExitDone
			for part, code := range d.exits {
				if strings.Contains(line, part) {
					want, used[part] = code, true
				}
			}
			sh.line(line, want)
		}
	}
	proctest.Eventually(t, func() bool { return sh.logged(d.logged) }, "a background command of %s prints %q", path, d.logged)
	for part := range d.notRun {
		if !used[part] {
			t.Errorf("%s has no block that begins with %q; remove it from notRun", path, part)
		}
	}
	for part := range d.exits {
		if !used[part] {
			t.Errorf("%s has no line with %q; remove it from exits", path, part)
		}
	}
	proctest.Eventually(t, func() bool { return sh.idle() }, "the changes of %s are settled", path)
}

// shell runs the commands of a document.
type shell struct {
	t     *testing.T
	in    io.Writer
	out   *bufio.Reader
	dir   string
	put   *strings.Replacer
	redis *redistest.Server
	left  []int // process groups of background commands
}

// unending matches commands to run in the background.
var unending = regexp.MustCompile(`lockstep (serve|follow|tail)\b|redis-cli --latency|examples/notified`)

func openShell(t *testing.T) *shell {
	t.Helper()
	dir := t.TempDir()
	git := proctest.StartGit(t, gitserver.WithTLS())
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"README": "hello\n"}))(t)
	proctest.Must(git.Create(t.Context(), "acme/gadgets", map[string]string{"README": "hello\n"}))(t)
	ca := filepath.Join(dir, "ca.pem")
	proctest.Must(0, os.WriteFile(ca, git.CA(), 0o644))(t)
	s := &shell{t: t, dir: dir, redis: redistest.StartReal(t)}
	address, app := proctest.FreeAddress(t), proctest.FreeAddress(t)
	s.put = strings.NewReplacer("redis://127.0.0.1:6379", s.redis.URL(), "/srv/repos", filepath.Join(dir, "volume"),
		"/srv/copies", filepath.Join(dir, "copies"), "https://lockstep.example.org", "http://"+address, "127.0.0.1:8080", address, "127.0.0.1:9000", app, " :8080", " "+address, "=…", "=0123456789abcdef0123456789abcdef")

	bin := filepath.Join(dir, "bin")
	proctest.Must(0, os.Mkdir(bin, 0o755))(t)
	for name, script := range map[string]string{
		"go":        "case \"$1 $2 $3 $4\" in 'run ./cmd/lockstep '*) shift 2; exec lockstep \"$@\" ;; 'build -o lockstep ./cmd/lockstep') exec cp \"$(command -v lockstep)\" lockstep ;; 'run ./examples/notified'*) shift 2; exec \"$NOTIFIED\" -listen \"$NOTIFIED_ADDRESS\" ;; esac\nexit 97\n",
		"redis-cli": fmt.Sprintf("PATH=%s exec redis-cli -p %d \"$@\"\n", os.Getenv("PATH"), s.redis.Port()),
	} {
		proctest.Must(0, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755))(t)
	}
	proctest.Must(0, os.WriteFile(filepath.Join(dir, ".curlrc"), []byte("fail\nsilent\nshow-error\nnoproxy = \"*\"\n"), 0o644))(t)

	notified := filepath.Join(dir, "notified")
	if text, err := exec.Command("go", "build", "-o", notified, "../../examples/notified").CombinedOutput(); err != nil {
		t.Fatalf("build the app: %v\n%s", err, text)
	}

	cmd := exec.Command("bash")
	cmd.Dir = filepath.Join(dir, "work")
	proctest.Must(0, os.Mkdir(cmd.Dir, 0o755))(t)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "LOCKSTEP_PROXY="+startProxy(t, git), "LOCKSTEP_CA_FILE="+ca,
		"LOCKSTEP_LOG_FORMAT=text", "NOTIFIED="+notified, "NOTIFIED_ADDRESS="+app)
	in := proctest.Must(cmd.StdinPipe())(t)
	out := proctest.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	proctest.Must(0, cmd.Start())(t)
	s.in, s.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
		for _, group := range s.left { // the shell itself may have exited
			_ = syscall.Kill(-group, syscall.SIGTERM)
			defer func() { _ = syscall.Kill(-group, syscall.SIGKILL) }()
		}
		_, _ = io.WriteString(in, "wait\n")
		_ = in.Close()
		_ = cmd.Wait()
		if t.Failed() {
			for n := range s.left {
				text, _ := os.ReadFile(s.log(n))
				t.Logf("background command %d:\n%s", n, proctest.Tail(string(text), 3000))
			}
		}
	})
	return s
}

func (s *shell) log(n int) string { return filepath.Join(s.dir, "log-"+strconv.Itoa(n)) }

// logged reports whether a background command has printed text. It returns true if text is empty.
func (s *shell) logged(text string) bool {
	for n := range s.left {
		if log, _ := os.ReadFile(s.log(n)); strings.Contains(string(log), text) {
			return true
		}
	}
	return text == ""
}

// line runs a line until it exits. A background command runs until it is ready.
func (s *shell) line(line string, want int) {
	s.t.Helper()
	if strings.HasPrefix(line, "#") {
		return
	}
	line = s.put.Replace(line)
	if !unending.MatchString(line) {
		if out, code := s.typed("{ " + line + "\n} </dev/null"); code != want {
			s.t.Fatalf("$ %s\n%s\nexit code %d, want %d", line, out, code, want)
		}
		return
	}
	line = strings.Replace(line, "lockstep follow", "env -u LOCKSTEP_PROXY lockstep follow", 1) // the proxy leads to the Git server only
	log := s.log(len(s.left))
	proctest.Must(0, os.WriteFile(log+".sh", []byte(line+"\n"), 0o644))(s.t)
	// In a new session, so that cleanup can kill the whole group.
	out, _ := s.typed(fmt.Sprintf("setsid bash %[1]s.sh </dev/null >%[1]s 2>&1 & echo $!", log))
	s.left = append(s.left, proctest.Must(strconv.Atoi(strings.TrimSpace(out)))(s.t))
	if strings.Contains(line, "lockstep serve") && !strings.Contains(line, "--roles reader") {
		proctest.Eventually(s.t, func() bool {
			text, _ := os.ReadFile(log)
			return strings.Contains(string(text), "worker takes changes")
		}, "%s takes changes", line)
	}
	if strings.Contains(line, "lockstep follow") {
		proctest.Eventually(s.t, func() bool {
			text, _ := os.ReadFile(log)
			return strings.Contains(string(text), "caught up with the reader")
		}, "%s has caught up", line)
	}
	if strings.Contains(line, "examples/notified") {
		proctest.Eventually(s.t, func() bool {
			text, _ := os.ReadFile(log)
			return strings.Contains(string(text), "waiting for notifications")
		}, "the app runs")
	}
	if _, address, listens := strings.Cut(line, "--listen "); listens {
		address, _, _ = strings.Cut(address, " ")
		proctest.Eventually(s.t, func() bool {
			resp, err := http.Get("http://" + address + "/readyz")
			return err == nil && errors.Join(resp.Body.Close()) == nil && resp.StatusCode == http.StatusOK
		}, "%s is ready", line)
	}
}

// typed runs a command and returns its output and exit code.
func (s *shell) typed(command string) (string, int) {
	s.t.Helper()
	const end = "\x04end "
	proctest.Must(fmt.Fprintf(s.in, "%s\nprintf '\\n\\004end %%d\\n' $?\n", command))(s.t)
	defer time.AfterFunc(2*time.Minute, func() { s.t.Errorf("timed out: %s", command); s.t.FailNow() }).Stop()
	var out strings.Builder
	for {
		text, err := s.out.ReadString('\n')
		if code, ended := strings.CutPrefix(text, end); ended {
			return out.String(), proctest.Must(strconv.Atoi(strings.TrimSpace(code)))(s.t)
		}
		out.WriteString(text)
		if err != nil {
			s.t.Fatalf("the shell exited at %s: %v\n%s", command, err, out.String())
		}
	}
}

// idle reports whether all changes are settled.
func (s *shell) idle() bool {
	changes, err := stream.Stats(context.Background(), s.redis.Client(), string(events.DefaultNamespace), events.DefaultNamespace.Changes())
	workers, ok := changes.Group(events.WorkersGroup)
	return err == nil && (ok || changes.Length == 0) && workers.Lag == 0 && workers.Pending == 0
}

// startProxy starts an HTTP proxy that connects every CONNECT request to the Git server.
func startProxy(t *testing.T, git *gitserver.Server) string {
	t.Helper()
	address := strings.TrimPrefix(strings.TrimSuffix(git.URL("x"), "/x.git"), "https://")
	listener := proctest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go tunnel(conn, address)
		}
	}()
	return "http://" + listener.Addr().String()
}

func tunnel(conn net.Conn, address string) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	req, err := http.ReadRequest(reader)
	if err != nil || req.Method != http.MethodConnect {
		return
	}
	remote, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer remote.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(conn, remote)
		_ = conn.Close()
		close(done)
	}()
	_, _ = io.Copy(remote, reader)
	_ = remote.Close()
	<-done
}
