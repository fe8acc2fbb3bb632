package cli

import (
	"context"
	"errors"
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

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// gated is a proxy for the Git server. It sends the start of a pack, and the rest once it is opened.
type gated struct {
	*httptest.Server
	open func()
}

const gatedAfter = 200 << 10 // bytes, more than one side-band packet

func newGated(t *testing.T, git *gitserver.Server) *gated {
	t.Helper()
	gate := make(chan struct{})
	proxy := httputil.NewSingleHostReverseProxy(proctest.Must(url.Parse(strings.TrimSuffix(git.URL("x"), "/x.git")))(t))
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(res *http.Response) error {
		if strings.HasSuffix(res.Request.URL.Path, "/git-upload-pack") && res.ContentLength < 0 { // the length of a short list of refs is known
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

// waiting blocks reads until the gate is open.
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
		return 0, errors.New("the client disconnected")
	}
}

func (g *gated) url(repo string) string { return g.URL + "/" + repo + ".git" }

// large creates a repository whose pack is much larger than gatedAfter.
func large(t *testing.T, git *gitserver.Server, repo string) {
	t.Helper()
	proctest.Must(git.Generate(t.Context(), repo, gitserver.Shape{Files: 200, Bytes: 2 << 20}))(t)
}

// onTerminal starts lockstep with a terminal as standard error.
func onTerminal(t *testing.T, p *pty, env []string, args ...string) (stdout *logtest.Buffer, ended *proctest.Process) {
	t.Helper()
	cmd := proctest.Command(t, args...)
	stdout = &logtest.Buffer{}
	cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "CI="}, env...)...)
	cmd.Stdout, cmd.Stderr = stdout, p.File
	ended = proctest.StartCommand(t, cmd)
	ended.Log = p.Output
	return stdout, ended
}

var movingBar = regexp.MustCompile(`fetch +[|/\\-] [\d.]+KiB  \d+s`)

func TestLongSyncShowsProgressBar(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	large(t, git, "acme/widgets")
	gate, server := newGated(t, git), redistest.Start(t)
	proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir())
	for name, args := range map[string][]string{
		"embedded worker":        {"--root", t.TempDir()},
		"workers of the service": {"--redis", server.URL()},
	} {
		t.Run(name, func(t *testing.T) {
			gate, p := gate, openPTY(t)
			if name == "embedded worker" {
				gate = newGated(t, git)
			}
			stdout, ended := onTerminal(t, p, nil, append([]string{"sync", gate.url("acme/widgets")}, args...)...)
			proctest.Eventually(t, func() bool { return movingBar.MatchString(p.Output.String()) }, "bar of the fetch")
			gate.open()
			if code := ended.AwaitExit(time.Minute); code != term.ExitDone {
				t.Errorf("exit code %d", code)
			}
			if !strings.HasPrefix(stdout.String(), "synced acme/widgets: ") || strings.Count(stdout.String(), "\n") != 1 {
				t.Errorf("stdout %q", stdout)
			}
			proctest.Eventually(t, func() bool { // output may arrive after the exit
				return strings.Contains(p.Output.String(), "\x1b[1A") && strings.HasSuffix(p.Output.String(), "\r\n")
			}, "the terminal shows bars redrawn in place and a final newline; it shows %q", p.Output)
		})
	}
}

// TestProgressBarCompletesWithItsPhase ends a phase between two updates.
func TestProgressBarCompletesWithItsPhase(t *testing.T) {
	t.Parallel()
	p := openPTY(t)
	b := &bars{w: p.File}
	b.draw(events.Progress{Phase: events.PhaseBuild, Done: 150, Total: 200, Unit: "files"}, 2*time.Second, 2*time.Second)
	b.draw(events.Progress{Phase: events.PhasePublish}, 0, 3*time.Second)
	closed := make(chan struct{})
	go func() { b.Close(false); close(closed) }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatalf("the bars are not closed; the terminal shows %q", p.Output)
	}
	proctest.Eventually(t, func() bool { return strings.Contains(p.Output.String(), "200 of 200 files") }, "all files")
}

func TestNoProgressBarWhereUnwanted(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	large(t, git, "acme/widgets")
	for name, tc := range map[string]struct{ env, args []string }{
		"CI":              {env: []string{"CI=true"}},
		"a dumb terminal": {env: []string{"TERM=dumb"}},
		"JSON":            {args: []string{"--json"}},
		"logging":         {args: []string{"--log-level", "error"}},
		"quick sync":      {},
	} {
		t.Run(name, func(t *testing.T) {
			p, remote := openPTY(t), git.URL("acme/widgets")
			stdout, ended := onTerminal(t, p, tc.env, append([]string{"sync", remote, "--root", t.TempDir()}, tc.args...)...)
			if code := ended.AwaitExit(time.Minute); code != term.ExitDone || stdout.String() == "" {
				t.Errorf("exit code %d, %q", code, stdout)
			}
			if p.Output.String() != "" && name != "quick sync" { // not on a slow machine
				t.Errorf("the terminal shows %q", p.Output)
			}
		})
	}
}

func TestProgressLinesWithoutTerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		d := &display{now: stretch{began: time.Now()}, view: &lines{w: &text, repo: proctest.Must(events.ParseRepoPath("acme/widgets"))(t)}}
		ctx, cancel := context.WithCancel(t.Context())
		d.stop = cancel
		d.drawn.Go(func() { d.Run(ctx) })
		time.Sleep(drawEvery / 2) // avoid the moments of drawing
		for range 14 {
			d.Show(events.Progress{Phase: events.PhaseFetch, Done: 3 << 20, Unit: "bytes"})
			time.Sleep(time.Second)
		}
		d.Show(events.Progress{Phase: "\x1b[2J", Done: 1}) // an unknown phase
		for done := range 100 {
			d.Show(events.Progress{Phase: events.PhaseBuild, Done: int64(done), Total: 100, Unit: "files"})
			time.Sleep(100 * time.Millisecond)
		}
		d.Show(events.Progress{Phase: events.PhasePublish})
		time.Sleep(8 * time.Second)
		d.Close(false)
		want := "acme/widgets after 10s: fetch, 3MiB\nacme/widgets after 20s: build, 59 of 100 files\nacme/widgets after 30s: publish\n"
		if got := text.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

// TestPublishAndWaitShowsProgress has no worker.
func TestPublishAndWaitShowsProgress(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	p, server := openPTY(t), redistest.Start(t)
	stdout, ended := onTerminal(t, p, nil, "publish", "https://example.com/acme/widgets.git", "--wait", "--redis", server.URL())
	proctest.Eventually(t, func() bool { return strings.Contains(p.Output.String(), "wait for a worker") }, "bar of the wait")
	_ = ended.Cmd.Process.Signal(os.Interrupt)
	if code := ended.AwaitExit(time.Minute); code != term.ExitFailed || stdout.String() != "" {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

func TestProgressLineNamesTheStatus(t *testing.T) {
	var text strings.Builder
	l := &lines{w: &text, repo: proctest.Must(events.ParseRepoPath("acme/widgets"))(t)}
	l.draw(events.Progress{}, 11*time.Second, 11*time.Second)
	if text.String() != "acme/widgets after 11s: wait for a worker; see lockstep status\n" {
		t.Errorf("got %q", text.String())
	}
}

func TestProgressFallsBackToOtherChangeOfRepository(t *testing.T) {
	t.Parallel()
	change := proctest.Must(events.NewChange(events.Change{ID: "c1", URL: "https://example.com/acme/widgets.git"}))(t)
	at := func(phase events.Phase) events.Progress { return events.Progress{Phase: phase} }
	others := []state.Activity{
		{Job: "c3", Repo: "acme/gadgets", Progress: at(events.PhasePoll)}, {Job: "c2", Repo: "Acme/Widgets", Progress: at(events.PhaseFetch)},
		{Job: "c4", Repo: "no repository"},
	}
	if got := progressOf(others, change); got.Phase != events.PhaseFetch {
		t.Errorf("got %+v, want the progress of c2", got)
	}
	if got := progressOf(append(others, state.Activity{Job: "c1", Repo: "acme/widgets", Progress: at(events.PhaseBuild)}), change); got.Phase != events.PhaseBuild {
		t.Errorf("got %+v, want its own progress", got)
	}
	if got := progressOf(nil, change); label(got) != "wait for a worker" {
		t.Errorf("got %+v, want waiting for a worker", got)
	}
}

func TestActivityOfDeadWorkerDisappears(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	large(t, git, "acme/widgets")
	gate, client := newGated(t, git), server.Client()
	store := state.NewStore(client, events.DefaultNamespace)
	serving := func(name string) *proctest.Process {
		p := proctest.Start(t, "serve", "--roles", "worker", "--worker", name, "--lease", "1s", "--redis", server.URL(), "--root", root)
		p.AwaitLog("worker takes changes")
		return p
	}
	busy := func(worker string) func() bool {
		return func() bool {
			all := proctest.Must(store.Activities(ctx))(t)
			return len(all) == 1 && all[0].Worker == worker && all[0].Phase == events.PhaseFetch && all[0].Done > 0 && all[0].Repo == "acme/widgets"
		}
	}
	first := serving("first")
	change := proctest.Must(events.NewChange(events.Change{ID: "c1", URL: gate.url("acme/widgets")}))(t)
	proctest.Must(0, app.PublishChange(ctx, client, events.DefaultNamespace, change))(t)
	proctest.Eventually(t, busy("first"), "activity of the first worker")
	serving("second")
	first.Kill()
	proctest.Eventually(t, busy("second"), "activity of only the second worker")
	gate.open()
	if r := proctest.AwaitResults(t, client, 1)[0]; r.Type != events.ResultSynced {
		t.Errorf("result %+v", r)
	}
	proctest.Eventually(t, func() bool { return len(proctest.Must(store.Activities(ctx))(t)) == 0 }, "end of the activities")
	if _, err := os.Stat(filepath.Join(root, "acme/widgets")); err != nil {
		t.Error(err)
	}
}
