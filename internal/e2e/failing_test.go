package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// failingOf returns "app operation class" of each failure of a repository, sorted, and the failures.
func failingOf(t *testing.T, redisServer *redistest.Server, repo string) (names []string, failing []state.Trouble) {
	t.Helper()
	known, err := state.NewStore(redisServer.Client(), events.DefaultNamespace).Load(context.Background(), proctest.Must(events.ParseRepoPath(repo))(t))
	if err != nil {
		t.Fatal(err)
	}
	failing, _ = known.Failing()
	for _, f := range failing {
		names = append(names, fmt.Sprintf("%s %s %s", f.App, f.Operation, f.Class))
	}
	slices.Sort(names)
	return names, failing
}

func awaitFailing(t *testing.T, redisServer *redistest.Server, repo string, want ...string) {
	t.Helper()
	proctest.Eventually(t, func() bool {
		got, _ := failingOf(t, redisServer, repo)
		return slices.Equal(got, want)
	}, "%s fails: %q", repo, want)
}

// TestFailuresAreVisibleUntilTheNextSuccess has a watched repository that is not there at first, that one of two apps may then not
// read, and that is there for both in the end. No failure shows a secret.
func TestFailuresAreVisibleUntilTheNextSuccess(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, redisServer := proctest.StartGit(t), redistest.Start(t)
	client, url := redisServer.Client(), git.URL("acme/widgets")
	prefix := strings.TrimSuffix(url, "acme/widgets.git")
	serve := proctest.Command(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0")
	serve.Env = append(os.Environ(),
		"LOCKSTEP_CREDENTIAL_ONE_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ONE_URLS="+prefix,
		"LOCKSTEP_CREDENTIAL_TWO_PASSWORD="+secondToken, "LOCKSTEP_CREDENTIAL_TWO_URLS="+prefix)
	address := "http://" + proctest.StartCommand(t, serve).ListenAddress("listening")
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	docs := proctest.Must(watch.New(watch.Watch{App: "docs", URL: url, Credential: "one"}))(t)
	scan := proctest.Must(watch.New(watch.Watch{App: "scan", URL: url, Credential: "two"}))(t)
	proctest.Must(registry.Put(ctx, docs))(t)
	awaitFailing(t, redisServer, "acme/widgets", " poll not_found")

	shown := map[string]string{}
	for _, path := range []string{"/", "/dashboard/repos", "/dashboard/repo?repo=acme/widgets", "/api/v1/repos", "/api/v1/repos/acme/widgets"} {
		class := "not found"
		if strings.HasPrefix(path, "/api/") {
			class = `"not_found"`
		}
		proctest.Eventually(t, func() bool { // a busy Redis does not answer in time
			shown[path] = get(t, address+path)
			return strings.Contains(shown[path], "acme/widgets") && strings.Contains(shown[path], class)
		}, "%s shows %s", path, class)
	}
	for _, path := range []string{"/", "/dashboard/repos", "/dashboard/repo?repo=acme/widgets"} {
		if strings.Contains(shown[path], `<span class="badge ok">closed`) {
			t.Errorf("%s: the circuit looks fine beside a failure", path)
		}
	}
	for _, args := range [][]string{{"status"}, {"repos", "ls"}, {"repos", "show", "acme/widgets"}} {
		stdout, stderr, code := proctest.RunLockstep(t, nil, append(args, "--redis", redisServer.URL())...)
		if code != 0 || !strings.Contains(stdout, "not_found at ") || !strings.Contains(stdout, "has no such repository") {
			t.Errorf("%v: %d\n%s%s", args, code, stdout, stderr)
		}
	}

	git.AcceptTokens("acme/widgets", firstToken)
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	proctest.Must(registry.Put(ctx, scan))(t) // concerns that app alone
	awaitFailing(t, redisServer, "acme/widgets", " poll not_found", "scan sync auth")
	poll := proctest.Must(events.NewChange(events.Change{Type: events.ChangeDue, ID: "poll-again", Source: "/test", Repo: docs.Repo, URL: url}))(t)
	proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, poll))(t)
	awaitFailing(t, redisServer, "acme/widgets", "scan sync auth")
	proctest.Eventually(t, func() bool { return strings.Contains(fmt.Sprint(resultsIn(t, client)), head) }, "a result for docs")
	if text := fmt.Sprint(client.HGetAll(ctx, events.DefaultNamespace.Repo(docs.Repo)).Val()); strings.Contains(text, secondToken) || strings.Contains(text, firstToken) {
		t.Errorf("a secret in the state: %s", text)
	}

	git.AcceptTokens("acme/widgets", firstToken, secondToken)
	change := proctest.Must(scan.Change("scan-again", "/test", events.Ref{}, ""))(t)
	proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	awaitFailing(t, redisServer, "acme/widgets")
	if n := client.Exists(ctx, events.DefaultNamespace.Failing()).Val(); n != 0 {
		t.Error("the index is left")
	}

	// A failure goes with its watch, and a repository that never synced with its last one.
	gone := proctest.Must(watch.New(watch.Watch{App: "docs", URL: git.URL("acme/gone")}))(t)
	proctest.Must(registry.Put(ctx, gone))(t)
	awaitFailing(t, redisServer, "acme/gone", " poll not_found")
	proctest.Must(registry.Remove(ctx, gone.Key()))(t)
	awaitFailing(t, redisServer, "acme/gone") // once its removal is settled
}

// TestFailuresTellTheNextAttempt checks the failure of a server, which is retried, and that waiting for a lease for longer than lock-wait
// does not replace it.
func TestFailuresTellTheNextAttempt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, redisServer := proctest.StartGit(t), redistest.Start(t)
	client := redisServer.Client()
	proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	git.Answer("acme/widgets", http.StatusInternalServerError)
	worker := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--lease", "1s", "--lock-wait", "1s", "--max-attempts", "1000")
	send := func(id string) {
		t.Helper()
		change := proctest.Must(events.NewChange(events.Change{ID: id, Source: "/test", App: "docs", URL: git.URL("acme/widgets")}))(t)
		proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	}
	send("first")
	awaitFailing(t, redisServer, "acme/widgets", "docs sync server")
	client.HSet(ctx, "lockstep:{0}:lock:acme/widgets", "owner", "somebody", "expires", time.Now().Add(time.Hour).UnixMicro(), "worker", "w", "job", "j", "operation", "sync")
	_, failing := failingOf(t, redisServer, "acme/widgets")
	if f := failing[0]; f.Next == nil || f.Next.Sub(f.At) <= 0 || f.Next.Sub(f.At) > 31*time.Second || f.Attempts < 1 {
		t.Errorf("%+v", f)
	}

	send("second")
	worker.AwaitLog("lock or remote is busy, will retry")
	if _, now := failingOf(t, redisServer, "acme/widgets"); !slices.EqualFunc(now, failing, func(a, b state.Trouble) bool { return a.Job == b.Job && a.Class == b.Class && a.At.Equal(b.At) }) {
		t.Errorf("after the wait for the lease %+v, want %+v", now, failing)
	}
}

// TestDeadAndStoppedWorkersAreNotCounted kills one of two idle workers, pauses the other, and stops it.
func TestDeadAndStoppedWorkersAreNotCounted(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	redisServer, root := redistest.Start(t), t.TempDir()
	receiver := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--root", root, "--roles", "receiver", "--listen", "127.0.0.1:0")
	url := "http://" + receiver.ListenAddress("listening")
	workers := func(want int) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			stdout, _, _ := proctest.RunLockstep(t, nil, "status", "--redis", redisServer.URL())
			stdout = strings.Join(strings.Fields(stdout), " ")
			none := strings.Contains(stdout, "no worker takes changes")
			return strings.Contains(stdout, fmt.Sprintf(" workers %d, at work on 0", want)) && none == (want == 0)
		}, "status counts %d workers", want)
	}
	workers(0)
	one := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--root", root, "--roles", "worker")
	two := proctest.Start(t, "serve", "--redis", redisServer.URL(), "--root", root, "--roles", "worker")
	workers(2)
	one.Kill()
	workers(1)
	proctest.Must(0, two.Cmd.Process.Signal(syscall.SIGSTOP))(t)
	workers(0)
	proctest.Must(0, two.Cmd.Process.Signal(syscall.SIGCONT))(t)
	workers(1)
	redisServer.Client().FlushAll(context.Background())
	workers(1)
	if code := two.Terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	workers(0)
	var streams struct{ Streams []server.Stream }
	proctest.Eventually(t, func() bool {
		resp := proctest.Must(http.Get(url + "/api/v1/streams"))(t)
		defer resp.Body.Close()
		proctest.Must(0, json.NewDecoder(resp.Body).Decode(&streams))(t)
		return len(streams.Streams) > 0 && len(streams.Streams[0].Groups) == 1 && streams.Streams[0].Groups[0].Live == 0
	}, "the API counts no worker")
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp := proctest.Must(http.Get(url))(t)
	defer resp.Body.Close()
	return string(proctest.Must(io.ReadAll(resp.Body))(t))
}
