package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/changes"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

const (
	idleStreams   = 5_000
	idleMemory    = 300 << 20
	idleAddresses = 8 // that the clients connect from
)

// TestThousandsOfStreams has a process with the role reader serve 5,000 idle streams of results, and then one result to each.
func TestThousandsOfStreams(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	raiseOpenFiles(t, idleStreams+2000)
	server := redistest.StartReal(t)
	client, namespace := server.Client(), events.DefaultNamespace
	url := "https://git.example.com/acme/widgets.git"
	repo := proctest.Must(events.ParseRepoPath("acme/widgets"))(t)
	apps := []string{"docs", "scan"} // one app has half of the streams of a process at most
	var secrets []string
	for _, app := range apps {
		_, secret, err := access.NewTokens(client, namespace).Create(t.Context(), app)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
		proctest.Must(watch.NewRegistry(client, namespace).Put(t.Context(), watch.Watch{App: app, URL: url, Repo: repo}))(t)
	}
	process := proctest.Start(t, "serve", "--roles", "reader", "--listen", "127.0.0.1:0", "--redis", server.URL(), "--root", t.TempDir())
	address := process.ListenAddress("listening")
	conns := make([]net.Conn, idleStreams)
	for i := range conns {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%idleAddresses))}, Timeout: time.Minute}
		conns[i] = proctest.Must(dialer.DialContext(t.Context(), "tcp", address))(t)
		defer conns[i].Close()
		proctest.Must(fmt.Fprintf(conns[i], "GET /api/v1/results HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", address, secrets[i%2]))(t)
		awaitText(t, conns[i], "id: ")
	}
	begin := time.Now()
	for _, conn := range conns { // the second heartbeat of each
		awaitText(t, conn, "id: ")
		awaitText(t, conn, "id: ")
	}
	resident, peak := memoryOf(t, process.Cmd.Process.Pid)
	t.Logf("%d idle streams: %d MB, at most %d MB; two heartbeats to each within %v", idleStreams, resident>>20, peak>>20, time.Since(begin).Round(time.Second))
	if peak > idleMemory {
		t.Errorf("%d MB, want at most %d", peak>>20, idleMemory>>20)
	}
	begin = time.Now()
	for i, app := range apps {
		result := events.Result{
			ID: fmt.Sprint("r", i), Type: events.ResultSynced, Source: "/test", Time: time.Now(), App: app, Repo: repo,
			Ref: proctest.Must(events.ParseRef("refs/heads/main"))(t), After: strings.Repeat("a", 40), Path: "acme/widgets", Tree: "acme/widgets~1",
		}
		fields := proctest.Must(stream.Fields(proctest.Must(changes.ResultMessage(result))(t)))(t)
		proctest.Must(client.XAdd(t.Context(), &redis.XAddArgs{Stream: namespace.Results(), Values: fields}).Result())(t)
	}
	for _, conn := range conns {
		awaitText(t, conn, "event: synced")
	}
	resident, peak = memoryOf(t, process.Cmd.Process.Pid)
	t.Logf("one result to each: within %v; %d MB, at most %d MB", time.Since(begin).Round(time.Millisecond), resident>>20, peak>>20)
	if peak > idleMemory {
		t.Errorf("%d MB, want at most %d", peak>>20, idleMemory>>20)
	}
}

// awaitText reads from a connection until a line begins with text.
func awaitText(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	in := bufio.NewReaderSize(oneByte{conn}, 16) // reads no further than the line
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("want %q: %v", text, err)
		}
		if strings.HasPrefix(line, "HTTP/") && !strings.HasPrefix(line, "HTTP/1.1 200") {
			t.Fatal(line)
		}
		if strings.HasPrefix(line, text) {
			return
		}
	}
}

// oneByte reads single bytes.
type oneByte struct{ net.Conn }

func (o oneByte) Read(p []byte) (int, error) { return o.Conn.Read(p[:1]) }

// memoryOf returns the resident memory of a process, and its maximum.
func memoryOf(t *testing.T, pid int) (resident, peak int64) {
	t.Helper()
	status := string(proctest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))
	field := func(name string) int64 {
		found := regexp.MustCompile(name + `:\s+(\d+) kB`).FindStringSubmatch(status)
		if found == nil {
			t.Fatalf("no %s in\n%s", name, status)
		}
		return proctest.Must(strconv.ParseInt(found[1], 10, 64))(t) << 10
	}
	return field("VmRSS"), field("VmHWM")
}

func raiseOpenFiles(t *testing.T, want uint64) {
	t.Helper()
	var limit syscall.Rlimit
	proctest.Must(0, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))(t)
	if limit.Max < want {
		t.Skipf("needs %d open files; the limit is %d", want, limit.Max)
	}
	if limit.Cur < want {
		limit.Cur = limit.Max
		proctest.Must(0, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))(t)
	}
}
