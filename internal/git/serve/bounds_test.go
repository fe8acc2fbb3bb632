package serve

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/internal/git/object"
	"lockstep/internal/git/pkt"
	"lockstep/internal/testenv"
)

// big creates a repository with a file of size bytes that does not compress, and returns its commit.
func (w *world) big(size int) string {
	w.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	return testenv.Must(w.forge.Create(w.Context(), widgets, map[string]string{"big": string(content)}))(w)
}

// connect sends a fetch of a commit on a new connection, and does not read the answer.
func (w *world) connect(commit string) net.Conn {
	w.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(w.base, "http://"), "/")
	conn := testenv.Must(net.Dial("tcp", host))(w)
	testenv.Must(0, conn.(*net.TCPConn).SetReadBuffer(4<<10))(w)
	body := pkts("command=fetch", "0001", "ofs-delta", "want "+commit, "done", "0000")
	fmt.Fprintf(conn, "POST /git/%s.git/git-upload-pack HTTP/1.1\r\nHost: %s\r\nGit-Protocol: version=2\r\nContent-Type: application/x-git-upload-pack-request\r\nContent-Length: %d\r\n\r\n%s",
		widgets, host, len(body), body)
	w.Cleanup(func() { conn.Close() })
	return conn
}

// TestShared fetches a pack that is already being sent to a client that does not read: it is not made again. The file is gone once
// all have left.
func TestShared(t *testing.T) {
	ended := make(chan Served, 100)
	temp := t.TempDir()
	w := newWorld(t, func(cfg *Config) { cfg.tempDir, cfg.Observe = temp, func(s Served) { ended <- s } })
	commit := w.big(16 << 20)
	slow := w.connect(commit)
	testenv.Must(slow.Read(make([]byte, 100)))(t)
	for range 3 {
		w.git(t.TempDir(), "clone", "-q", w.url(widgets), "clone")
	}
	slow.Close()
	shared := 0
	for fetches := 0; fetches < 4; {
		s := <-ended
		if s.Command == "fetch" {
			fetches++
		}
		if s.Shared {
			shared++
		}
	}
	if shared != 3 {
		t.Errorf("%d of 3 packs were shared", shared)
	}
	w.handler.shared.mu.Lock()
	defer w.handler.shared.mu.Unlock()
	if n := len(w.handler.shared.packs); n > 0 {
		t.Errorf("%d packs are kept", n)
	}
}

// TestSlowReaders cuts clients off that stop receiving, without harm to others.
func TestSlowReaders(t *testing.T) {
	testenv.Long(t)
	ended := make(chan Served, 100)
	w := newWorld(t, func(cfg *Config) {
		cfg.stall, cfg.spoolBytes, cfg.maxPacks = 2*time.Second, 1<<20, 2
		cfg.Observe = func(s Served) { ended <- s }
	})
	commit := w.big(16 << 20)
	for range 4 {
		w.connect(commit)
	}
	for cut := 0; cut < 4; {
		if s := <-ended; s.Command == "fetch" && s.Err != nil {
			cut++
		}
	}
	w.update(func() { w.handler.cfg.stall = time.Hour }) // a busy machine may not run the next one for as long
	w.git(t.TempDir(), "clone", "-q", w.url(widgets), "clone")
}

// waiting returns the number of packs that wait for their clients.
func (h *Handler) waiting() int {
	h.resting.mu.Lock()
	defer h.resting.mu.Unlock()
	return int(h.resting.used)
}

// TestSlowOthers serves others while clients that do not read fill the files of as many packs as are made at a time. Close ends all of
// them, also those whose start is gone.
func TestSlowOthers(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.spoolBytes, cfg.maxPacks = 1<<20, 2 })
	commit := w.big(16 << 20)
	small := testenv.Must(w.forge.Create(t.Context(), "acme/small", map[string]string{"a": "1"}))(t)
	h := w.handler
	for i := range 3 {
		testenv.Must(w.connect(commit).Read(make([]byte, 100)))(t)
		for h.waiting() <= i { // until the file is full
			runtime.Gosched()
		}
	}
	clone := filepath.Join(t.TempDir(), "clone")
	w.git("/", "clone", "-q", w.url("acme/small"), clone)
	if got := w.git(clone, "rev-parse", "HEAD"); got != small {
		t.Errorf("HEAD is %s", got)
	}
	h.Close()
	if h.waiting()+len(h.working) > 0 {
		t.Error("a pack is still being made")
	}
}

// TestLeaveWhileOthersWork ends the request of a slow client that leaves, although others make as many packs as may be made at a time.
func TestLeaveWhileOthersWork(t *testing.T) {
	testenv.Long(t)
	ended := make(chan Served, 10)
	w := newWorld(t, func(cfg *Config) {
		cfg.spoolBytes, cfg.maxPacks, cfg.Observe = 1<<20, 1, func(s Served) { ended <- s }
	})
	slow := w.connect(w.big(16 << 20))
	testenv.Must(slow.Read(make([]byte, 100)))(t)
	h := w.handler
	h.working <- struct{}{} // once the file is full
	slow.Close()
	select {
	case s := <-ended:
		if s.Err == nil {
			t.Error("the request did not fail")
		}
	case <-time.After(time.Minute):
		t.Error("the request has not ended")
	}
	<-h.working
	h.Close()
	if h.waiting()+len(h.working) > 0 {
		t.Error("a pack is still being made")
	}
}

// TestBrokenOff reports a pack that cannot be completed, and breaks the connection of a client without side bands.
func TestBrokenOff(t *testing.T) {
	ended := make(chan Served, 10)
	w := newWorld(t, func(cfg *Config) { cfg.spoolBytes, cfg.Observe = 1<<20, func(s Served) { ended <- s } })
	body := pkts("want "+w.big(16<<20), "0000", "done")
	answer := testenv.Must(http.Post(w.url(widgets)+"/git-upload-pack", "application/x-git-upload-pack-request", strings.NewReader(body)))(t)
	defer answer.Body.Close()
	testenv.Must(io.ReadFull(answer.Body, make([]byte, 100)))(t)
	w.handler.Close()
	if n, err := io.Copy(io.Discard, answer.Body); err == nil {
		t.Errorf("the response has a regular end after %d bytes", n)
	}
	if s := <-ended; s.Command != "fetch" || s.Err == nil || s.Bytes == 0 {
		t.Errorf("%+v", s)
	}
}

// TestBusy refuses requests beyond the limits, of one sender and of all.
func TestBusy(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t, func(cfg *Config) { cfg.maxRequests = 4 })
	var mu sync.Mutex
	sender := "a"
	w.onOpen(func(r *Repo, _ *Pinned) {
		mu.Lock()
		defer mu.Unlock()
		r.Sender = sender
	})
	get := func() *http.Response {
		answer := testenv.Must(http.Get(w.url(widgets) + "/info/refs?service=git-upload-pack"))(t)
		answer.Body.Close()
		return answer
	}
	commit := w.big(16 << 20)
	for _, next := range []string{"b", "c", "d", "e"} {
		slow := w.connect(commit)
		testenv.Must(slow.Read(make([]byte, 100)))(t)
		if answer := get(); answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
			t.Errorf("%s, %v", answer.Status, answer.Header)
		}
		mu.Lock()
		sender = next
		mu.Unlock()
		if answer := get(); next != "e" && answer.StatusCode != http.StatusOK {
			t.Errorf("another sender: %s", answer.Status)
		} else if next == "e" && answer.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("beyond the limit: %s", answer.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestHugeRequests sends requests that are larger than any client's.
func TestHugeRequests(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	w := newWorld(t, nil)
	commit := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	var haves, wants, refs strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&haves, "0032have %040x\n", i)
	}
	for i := range 300_000 {
		fmt.Fprintf(&wants, "0032want %040x\n", i)
		fmt.Fprintf(&refs, "%04xref-prefix refs/heads/%d\n", len(fmt.Sprint(i))+27, i)
	}
	for name, body := range map[string]string{
		"haves": pkts("command=fetch", "0001", "want "+commit) + haves.String() + "0000",
		"wants": pkts("command=fetch", "0001") + wants.String() + "0000",
		"refs":  pkts("command=ls-refs", "0001") + refs.String() + "0000",
	} {
		if answer := w.post("version=2", body); !strings.Contains(answer, "ERR the request has more than") {
			t.Errorf("%s: %.200q", name, answer)
		}
	}
	var bomb bytes.Buffer
	packed := gzip.NewWriter(&bomb)
	testenv.Must(io.WriteString(packed, pkts("command=fetch", "0001", "want "+commit)))(t)
	for range 8 {
		testenv.Must(io.WriteString(packed, haves.String()))(t)
	}
	packed.Close()
	r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, w.url(widgets)+"/git-upload-pack", &bomb))(t)
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Set("Git-Protocol", "version=2")
	answer := testenv.Must(http.DefaultClient.Do(r))(t)
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	if text := testenv.Must(io.ReadAll(answer.Body))(t); !bytes.Contains(text, []byte("ERR the request has more than")) {
		t.Errorf("bomb: %q", text)
	}
}

// TestHeldLines refuses large requests and long lists of refs while a sender has too many of them, and counts them until they are
// answered.
func TestHeldLines(t *testing.T) {
	w := newWorld(t, nil)
	commit := testenv.Must(w.forge.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
	large := []string{"command=fetch", "0001", "want " + commit}
	for i := range 2 * linesStep {
		large = append(large, fmt.Sprintf("have %0*x", len(commit), i))
	}
	large = append(large, "done", "0000")
	small := []string{"command=fetch", "0001", "want " + commit, "done", "0000"}
	const refusal = "too many large requests at a time"
	check := func(want, wantList string) {
		t.Helper()
		if answer := w.post("version=2", pkts(large...)); !strings.Contains(answer, want) {
			t.Errorf("large request: %.200q, want %s", answer, want)
		}
		if answer := w.post("version=2", pkts(small...)); !strings.Contains(answer, "PACK") {
			t.Errorf("small request: %.200q", answer)
		}
		w.onOpen(func(r *Repo, _ *Pinned) {
			for i := range linesStep {
				r.Refs = append(r.Refs, Ref{Name: fmt.Sprintf("refs/heads/z%d", i), ID: object.ParseID(commit)})
			}
		})
		if answer := w.post("version=2", pkts("command=ls-refs", "0000")); !strings.Contains(answer, wantList) {
			t.Errorf("ls-refs: %.200q, want %s", answer, wantList)
		}
		answer := testenv.Must(http.Get(w.url(widgets) + "/info/refs?service=git-upload-pack"))(t)
		defer http.DefaultClient.CloseIdleConnections()
		defer answer.Body.Close()
		if body := testenv.Must(io.ReadAll(answer.Body))(t); !bytes.Contains(body, []byte(wantList)) {
			t.Errorf("refs: %.200q, want %s", body, wantList)
		}
		w.onOpen(nil)
	}
	h := w.handler
	const others = heldLines/4 - linesStep/2
	h.lines.take("", others)
	check(refusal, refusal)
	h.lines.give("", others)
	check("PACK", "refs/heads/z0")
	w.handler.Close()
	for len(h.serving) > 0 {
		runtime.Gosched()
	}
	if h.lines.used != 0 || len(h.lines.by) > 0 {
		t.Errorf("%d lines are held, %v", h.lines.used, h.lines.by)
	}
}

// TestReplacedStore clones and fetches while a writer pushes and moves the repository to a new store, as often as it can. A store is
// deleted once it is not served any more.
func TestReplacedStore(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t, nil)
	a := newAuthor(w, widgets, "sha1", 5)
	a.commits(20)
	g := &generations{w: w, root: t.TempDir(), pins: map[int]int{}}
	g.next()
	w.update(func() { w.handler.cfg.Source = g })
	ctx, stop := context.WithCancel(t.Context())
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		for ctx.Err() == nil {
			a.commits(1)
			g.next()
		}
	})
	for i := range 3 {
		readers.Go(func() {
			dir := filepath.Join(g.root, fmt.Sprint("clone", i))
			w.git("/", "clone", "-q", "--mirror", w.url(widgets), dir)
			for range testenv.Form(5, 50) {
				w.git(dir, "fetch", "-q", "--prune", "origin")
			}
			w.git(dir, "fsck", "--full", "--strict")
		})
	}
	readers.Wait()
	stop()
	writer.Wait()
}

// keptGenerations is how many copies of a repository are kept for clients that have listed their refs.
const keptGenerations = 20

// generations serves copies of the forge's repository. Each is deleted once there are some newer ones and it is not pinned.
type generations struct {
	w    *world
	root string

	mu   sync.Mutex
	n    int
	pins map[int]int
}

func (g *generations) dir(n int) string { return filepath.Join(g.root, fmt.Sprint(n)) }

// next makes a new copy the current one.
func (g *generations) next() {
	g.w.git("/", "clone", "-q", "--mirror", "--no-hardlinks", g.w.forge.Dir(widgets), g.dir(g.n+1))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
	g.remove(g.n - keptGenerations)
}

func (g *generations) remove(n int) {
	if n <= g.n-keptGenerations && g.pins[n] == 0 {
		os.RemoveAll(g.dir(n))
	}
}

func (g *generations) Open(ctx context.Context, r *http.Request) (*Repo, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	repo, _, err := readRepo(ctx, widgets, g.dir(g.n))
	if err != nil {
		return nil, err
	}
	repo.Pin = func(ctx context.Context, wants []object.ID) (*Pinned, error) { return g.pin(ctx, wants) }
	return repo, nil
}

// pin pins the newest copy whose refs have all wants: the refs may have moved since the client has listed them.
func (g *generations) pin(ctx context.Context, wants []object.ID) (*Pinned, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := g.n; n > max(0, g.n-keptGenerations); n-- {
		repo, store, err := readRepo(ctx, widgets, g.dir(n))
		if err != nil {
			return nil, err
		}
		has := func(want object.ID) bool {
			return want == repo.HeadID || slices.ContainsFunc(repo.Refs, func(ref Ref) bool { return ref.ID == want })
		}
		if slices.ContainsFunc(wants, func(want object.ID) bool { return !has(want) }) {
			continue
		}
		g.pins[n]++
		store.Earlier = wants
		store.Close = func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.pins[n]--
			g.remove(n)
		}
		return store, nil
	}
	return nil, &Refusal{http.StatusServiceUnavailable, "the store was replaced"}
}

// TestSlowRequest cuts off a client that does not send all of its request in time.
func TestSlowRequest(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.stall, cfg.maxTime = time.Hour, 100*time.Millisecond })
	w.update(func() { w.handler.cfg.Source = fixed{&Repo{Name: widgets}} })
	host, _, _ := strings.Cut(strings.TrimPrefix(w.base, "http://"), "/")
	conn := testenv.Must(net.Dial("tcp", host))(t)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /git/%s.git/git-upload-pack HTTP/1.1\r\nHost: %s\r\nGit-Protocol: version=2\r\nConnection: close\r\n"+
		"Content-Type: application/x-git-upload-pack-request\r\nContent-Length: 1000\r\n\r\n0014command=fetch", widgets, host)
	testenv.Must(0, conn.SetReadDeadline(time.Now().Add(time.Minute)))(t)
	if answer := testenv.Must(io.ReadAll(conn))(t); !bytes.Contains(answer, []byte("ERR ")) {
		t.Errorf("%q", answer)
	}
}

// fixed is a Source of one repository.
type fixed struct{ repo *Repo }

func (f fixed) Open(context.Context, *http.Request) (*Repo, error) { return f.repo, nil }

// FuzzRequest parses anything as a request.
func FuzzRequest(f *testing.F) {
	id := strings.Repeat("12", 20)
	f.Add(pkts("want "+id+" side-band-64k ofs-delta", "shallow "+id, "deepen 1", "0000", "have "+id, "0000", "done"))
	f.Add(pkts("want "+id, "have "+id, "deepen-since 5", "deepen-not main", "thin-pack", "done", "0000"))
	f.Add(pkts("peel", "symrefs", "unborn", "ref-prefix refs/", "0000"))
	f.Add("0003ffff0001")
	f.Fuzz(func(t *testing.T, body string) {
		read := func() *pktReader { return newPktReader(strings.NewReader(body)) }
		check := func(err error) {
			if refused := (*refusal)(nil); err != nil && (!errors.As(err, &refused) || len(refused.text) > 400) {
				t.Errorf("%v", err)
			}
		}
		for _, format := range []string{"sha1", "sha256"} {
			of := formats[format]
			_, err := parseFetch2(read(), of)
			check(err)
			req, err := parseFetch0(read(), of)
			if check(err); err == nil && req.sideband > pkt.MaxLine {
				t.Error("sideband", req.sideband)
			}
		}
		_, err := parseLsRefs(read())
		check(err)
	})
}
