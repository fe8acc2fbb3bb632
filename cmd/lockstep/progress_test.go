package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

// pty is a terminal: what is written to its file can be read from the buffer.
type pty struct {
	file     *os.File
	keyboard io.Writer // what is typed
	seen     *logtest.Buffer
	done     chan struct{} // closed once all has been read
}

func openPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	fd := int(master.Fd())
	must(0, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))(t)
	n := must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	must(0, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))(t)
	p := &pty{file: must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t), keyboard: master, seen: &logtest.Buffer{}, done: make(chan struct{})}
	go func() {
		_, _ = io.Copy(p.seen, master) // to the error that says that nobody has the terminal open any more
		close(p.done)
	}()
	t.Cleanup(func() { _ = p.file.Close(); <-p.done; _ = master.Close() })
	return p
}

// gated is a way to the Git server that sends some of a pack, and the rest once it is opened.
type gated struct {
	*httptest.Server
	open func()
}

const gatedAfter = 200 << 10 // bytes: more than one piece of a side-band

func newGated(t *testing.T, git *gitserver.Server) *gated {
	t.Helper()
	gate := make(chan struct{})
	proxy := httputil.NewSingleHostReverseProxy(must(url.Parse(strings.TrimSuffix(git.URL("x"), "/x.git")))(t))
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(res *http.Response) error {
		if strings.HasSuffix(res.Request.URL.Path, "/git-upload-pack") {
			rest := waiting{res.Request.Context(), gate, res.Body}
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(res.Body, gatedAfter), rest), res.Body}
		}
		return nil
	}
	g := &gated{Server: httptest.NewServer(proxy), open: sync.OnceFunc(func() { close(gate) })}
	t.Cleanup(func() { g.open(); g.Close() })
	return g
}

// waiting reads once its gate is open.
type waiting struct {
	ctx  context.Context
	gate <-chan struct{}
	io.Reader
}

func (w waiting) Read(p []byte) (int, error) {
	select {
	case <-w.gate:
		return w.Reader.Read(p)
	case <-w.ctx.Done():
		return 0, errors.New("the client has gone away")
	}
}

func (g *gated) url(repo string) string { return g.URL + "/" + repo + ".git" }

// large makes a repository whose pack has much more than what a gate lets through.
func large(t *testing.T, git *gitserver.Server, repo string) {
	t.Helper()
	must(git.Generate(t.Context(), repo, gitserver.Shape{Files: 200, Bytes: 2 << 20}))(t)
}

// onTerminal runs lockstep with a terminal for its standard error.
func onTerminal(t *testing.T, p *pty, env []string, args ...string) (stdout *logtest.Buffer, ended *process) {
	t.Helper()
	cmd := command(t, args...)
	stdout = &logtest.Buffer{}
	cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "CI="}, env...)...)
	cmd.Stdout, cmd.Stderr = stdout, p.file
	ended = &process{t: t, cmd: cmd, log: p.seen, done: make(chan struct{})}
	must(0, cmd.Start())(t)
	go func() { _ = cmd.Wait(); close(ended.done) }()
	t.Cleanup(ended.kill)
	return stdout, ended
}

var movingBar = regexp.MustCompile(`fetch +[|/\\-] \d+\.\d KiB  \d+s`)

func TestALongSyncShowsABarOnATerminal(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and is no different with another Redis")
	}
	git := startGit(t)
	large(t, git, "acme/widgets")
	gate, server := newGated(t, git), redistest.Start(t)
	start(t, "serve", "--redis", server.URL(), "--root", t.TempDir())
	for name, args := range map[string][]string{
		"a worker of its own":        {"--root", t.TempDir()},
		"the workers of the service": {"--redis", server.URL()},
	} {
		t.Run(name, func(t *testing.T) {
			gate, p := gate, openPTY(t)
			if name == "a worker of its own" {
				gate = newGated(t, git)
			}
			stdout, ended := onTerminal(t, p, nil, append([]string{"sync", gate.url("acme/widgets")}, args...)...)
			eventually(t, func() bool { return movingBar.MatchString(p.seen.String()) }, "bar of the fetch")
			gate.open()
			if code := ended.ended(time.Minute); code != exitDone {
				t.Errorf("exit code %d", code)
			}
			if !strings.HasPrefix(stdout.String(), "synced acme/widgets: ") || strings.Count(stdout.String(), "\n") != 1 {
				t.Errorf("stdout %q", stdout)
			}
			if !strings.Contains(p.seen.String(), "\x1b[1A") || !strings.HasSuffix(p.seen.String(), "\r\n") {
				t.Errorf("the terminal shows %q: want bars that are drawn again, and an end of the last line", p.seen)
			}
		})
	}
}

// Who looks once a second does not see the last file of a phase.
func TestABarEndsWithItsPhaseHoweverFarItWasSeen(t *testing.T) {
	p := openPTY(t)
	b := &bars{w: p.file}
	b.draw(events.Progress{Phase: events.PhaseBuild, Done: 150, Total: 200, Unit: "files"}, 2*time.Second, 2*time.Second)
	b.draw(events.Progress{Phase: events.PhasePublish}, 0, 3*time.Second)
	closed := make(chan struct{})
	go func() { b.close(false); close(closed) }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatalf("the bars are not closed; the terminal shows %q", p.seen)
	}
	eventually(t, func() bool { return strings.Contains(p.seen.String(), "200 of 200 files") }, "all files")
}

func TestNoBarWhereNobodyLooks(t *testing.T) {
	git := startGit(t)
	large(t, git, "acme/widgets")
	for name, tc := range map[string]struct{ env, args []string }{
		"CI":              {env: []string{"CI=true"}},
		"a dumb terminal": {env: []string{"TERM=dumb"}},
		"JSON":            {args: []string{"--json"}},
		"with a log":      {args: []string{"--log-level", "error"}},
		"all is quick":    {},
	} {
		t.Run(name, func(t *testing.T) {
			p, remote := openPTY(t), git.URL("acme/widgets")
			stdout, ended := onTerminal(t, p, tc.env, append([]string{"sync", remote, "--root", t.TempDir()}, tc.args...)...)
			if code := ended.ended(time.Minute); code != exitDone || stdout.String() == "" {
				t.Errorf("exit code %d, %q", code, stdout)
			}
			if p.seen.String() != "" && name != "all is quick" { // on a slow machine it may not be
				t.Errorf("the terminal shows %q", p.seen)
			}
		})
	}
}

func TestProgressIsALineNowAndThenElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		d := &display{now: stretch{began: time.Now()}, view: &lines{w: &text, repo: must(events.ParseRepoPath("acme/widgets"))(t)}}
		ctx, cancel := context.WithCancel(t.Context())
		d.stop = cancel
		d.drawn.Go(func() { d.run(ctx) })
		time.Sleep(drawEvery / 2) // never at the very moment when it is drawn
		for range 14 {
			d.show(events.Progress{Phase: events.PhaseFetch, Done: 3 << 20, Unit: "bytes"})
			time.Sleep(time.Second)
		}
		d.show(events.Progress{Phase: "\x1b[2J", Done: 1}) // nobody knows it, so it stays unknown
		for done := range 100 {
			d.show(events.Progress{Phase: events.PhaseBuild, Done: int64(done), Total: 100, Unit: "files"})
			time.Sleep(100 * time.Millisecond)
		}
		d.show(events.Progress{Phase: events.PhasePublish})
		time.Sleep(8 * time.Second)
		d.close(false)
		want := "acme/widgets after 10s: fetch, 3.0 MiB\nacme/widgets after 20s: build, 59 of 100 files\nacme/widgets after 30s: publish\n"
		if got := text.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

func TestTheProgressOfAnotherChangeForTheRepositoryWillDo(t *testing.T) {
	change := must(events.NewChange(events.Change{ID: "c1", URL: "https://example.com/acme/widgets.git"}))(t)
	at := func(phase events.Phase) events.Progress { return events.Progress{Phase: phase} }
	others := []state.Activity{
		{Job: "c3", Repo: "acme/gadgets", Progress: at(events.PhasePoll)}, {Job: "c2", Repo: "Acme/Widgets", Progress: at(events.PhaseFetch)},
		{Job: "c4", Repo: "no repository"},
	}
	if got := progressOf(others, change); got.Phase != events.PhaseFetch {
		t.Errorf("got %+v, want that of c2", got)
	}
	if got := progressOf(append(others, state.Activity{Job: "c1", Repo: "acme/widgets", Progress: at(events.PhaseBuild)}), change); got.Phase != events.PhaseBuild {
		t.Errorf("got %+v, want its own", got)
	}
	if got := progressOf(nil, change); label(got) != "wait for a worker" {
		t.Errorf("got %+v, want that it waits", got)
	}
}

func TestADeadWorkersWorkIsSeenNoMore(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	large(t, git, "acme/widgets")
	gate, client := newGated(t, git), server.Client()
	store := state.NewStore(client, events.DefaultNamespace)
	serving := func(name string) *process {
		p := start(t, "serve", "--roles", "worker", "--worker", name, "--lease", "1s", "--redis", server.URL(), "--root", root)
		p.awaitLog("worker takes changes")
		return p
	}
	busy := func(worker string) func() bool {
		return func() bool {
			all := must(store.Activities(ctx))(t)
			return len(all) == 1 && all[0].Worker == worker && all[0].Phase == events.PhaseFetch && all[0].Done > 0 && all[0].Repo == "acme/widgets"
		}
	}
	first := serving("first")
	change := must(events.NewChange(events.Change{ID: "c1", URL: gate.url("acme/widgets")}))(t)
	must(0, publish(ctx, client, (&demo{}).config(), change))(t)
	eventually(t, busy("first"), "activity of the first worker")
	serving("second")
	first.kill()
	eventually(t, busy("second"), "activity of the second worker, and no more of the first")
	gate.open()
	if r := awaitResults(t, client, 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v", r)
	}
	eventually(t, func() bool { return len(must(store.Activities(ctx))(t)) == 0 }, "end of the activities")
	if _, err := os.Stat(filepath.Join(root, "acme/widgets")); err != nil {
		t.Error(err)
	}
}
