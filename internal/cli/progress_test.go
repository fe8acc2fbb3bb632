package cli

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// gatedGit starts a Git server with acme/widgets, which does not answer a fetch until open is called.
func gatedGit(t *testing.T) (git *gitserver.Server, open func()) {
	t.Helper()
	gate := make(chan struct{})
	git = proctest.StartGit(t, gitserver.WithBefore(func(ctx context.Context, _, service string) {
		if service != "git-upload-pack" { // the list of refs must begin within a minute
			return
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}))
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"a": "1"}))(t)
	return git, func() { close(gate) }
}

func TestProgressText(t *testing.T) {
	t.Parallel()
	change := proctest.Must(events.NewChange(events.Change{ID: "c1", URL: "https://example.com/acme/widgets.git"}))(t)
	at := func(phase events.Phase) events.Progress {
		return events.Progress{Phase: phase, Done: 3, Total: 4, Unit: "files"}
	}
	others := []state.Activity{
		{Job: "c3", Repo: "acme/gadgets", Progress: at(events.PhasePoll)}, {Job: "c2", Repo: "Acme/Widgets", Progress: at("\x1b[2Jfetch")},
		{Job: "c4", Repo: "no repository"},
	}
	own := append(others, state.Activity{Job: "c1", Repo: "acme/widgets", Progress: at(events.PhaseBuild)})
	for want, all := range map[string][]state.Activity{
		"waits for a worker; see lockstep status": nil, "[2Jfetch 3 of 4 files": others, "build 3 of 4 files": own,
	} {
		if got := progressOf(all, change, 10*time.Second).text; got != "acme/widgets after 10s: "+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var out strings.Builder
	progressOf(own, change, 10*time.Second).print(&out, term.Output{Form: term.FormEvent})
	if want := `{"repo":"acme/widgets","after_ms":10000,"phase":"build","done":3,"total":4,"unit":"files"}` + "\n"; out.String() != want {
		t.Errorf("%s, want %s", &out, want)
	}
}

// TestPublishAndWaitPrintsProgress has no worker.
func TestPublishAndWaitPrintsProgress(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	p := proctest.Start(t, "publish", "https://example.com/acme/widgets.git", "--wait", "--redis", redistest.Start(t).URL())
	p.AwaitLog("acme/widgets after 10s: waits for a worker; see lockstep status\n")
	_ = p.Cmd.Process.Signal(os.Interrupt)
	if code := p.AwaitExit(time.Minute); code != term.ExitFailed {
		t.Errorf("exit code %d", code)
	}
}

func TestTailAndVerifyPrintProgress(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	server, root := redistest.Start(t), t.TempDir()
	git, open := gatedGit(t)
	proctest.Start(t, "serve", "--roles", "worker", "--redis", server.URL(), "--root", root).AwaitLog("worker takes changes")
	change := proctest.Must(events.NewChange(events.Change{ID: "c1", URL: git.URL("acme/widgets")}))(t)
	proctest.Must(0, app.PublishChange(t.Context(), server.Client(), events.DefaultNamespace, change))(t)

	tail := proctest.Start(t, "tail", "acme/", "--count", "1", "--redis", server.URL())
	other := proctest.Start(t, "tail", "other/", "--redis", server.URL())
	tail.AwaitLog("acme/widgets after 1")
	verify := proctest.Start(t, "repos", "verify", "acme/widgets", "--redis", server.URL(), "--root", root)
	verify.AwaitLog("0 repositories done, 0 of them failed; now acme/widgets, since ")
	documents := proctest.Start(t, "tail", "acme/", "--count", "1", "--json", "--redis", server.URL())
	documents.AwaitLog(`{"repo":"acme/widgets","after_ms":1`)
	second := proctest.Start(t, "repos", "verify", "acme/widgets", "--json", "--redis", server.URL(), "--root", root)
	second.AwaitLog(`{"repo":"acme/widgets","after_ms":1`)
	open()
	for _, p := range []*proctest.Process{tail, verify, documents, second} {
		if code := p.AwaitExit(time.Minute); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	if log := other.Log.String(); strings.Contains(log, "acme/widgets") {
		t.Errorf("tail of other repositories: %s", log)
	}
}
