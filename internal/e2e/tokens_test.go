package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// TestEachAppUsesItsOwnToken has two apps watch one repository with different tokens during pushes.
func TestEachAppUsesItsOwnToken(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	head := proctest.Must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	url := git.URL("acme/widgets")
	git.AcceptTokens("acme/widgets", firstToken, secondToken)
	prefix := strings.TrimSuffix(url, "acme/widgets.git")
	var logs []*proctest.Process
	for range 2 {
		cmd := proctest.Command(t, "serve", "--redis", server.URL(), "--root", root, "--log-level", "debug")
		cmd.Env = append(os.Environ(),
			"LOCKSTEP_CREDENTIAL_ONE_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ONE_URLS="+prefix,
			"LOCKSTEP_CREDENTIAL_TWO_PASSWORD="+secondToken, "LOCKSTEP_CREDENTIAL_TWO_URLS="+prefix)
		logs = append(logs, proctest.StartCommand(t, cmd))
	}
	apps := map[string]watch.Watch{
		"docs": proctest.Must(watch.New(watch.Watch{App: "docs", URL: url, Credential: "one"}))(t),
		"scan": proctest.Must(watch.New(watch.Watch{App: "scan", URL: url, Credential: "two"}))(t),
	}
	proctest.Must(watch.NewRegistry(client, events.DefaultNamespace).Put(ctx, apps["docs"], apps["scan"]))(t)
	awaitGiven := func(app, commit string) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			return slices.ContainsFunc(resultsIn(t, client), func(r events.Result) bool { return r.App == app && r.After == commit })
		}, "a result for %s at %.12s", app, commit)
	}
	awaitGiven("docs", head)
	awaitGiven("scan", head)
	proctest.Eventually(t, func() bool { return isQuiet(ctx, client) }, "all is settled")

	announce := func(name, commit string) error {
		change, err := apps[name].Change(name+"-"+commit, "/test", events.Ref{}, commit)
		if err != nil {
			return err
		}
		return app.PublishChange(ctx, client, events.DefaultNamespace, change)
	}
	push := func(n string) string {
		return proctest.Must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": n}}))(t)
	}
	for app, token := range map[string]string{"docs": firstToken, "scan": secondToken} {
		before := len(git.TokensSeen("acme/widgets"))
		head = push(app)
		proctest.Must(0, announce(app, head))(t)
		awaitGiven(app, head)
		for _, used := range git.TokensSeen("acme/widgets")[before:] {
			if used != token {
				t.Errorf("a request for %s used the token of the other app", app)
			}
		}
	}
	for n := range 10 { // both at once
		head = push(strings.Repeat("x", n+2))
		var both errgroup.Group
		both.Go(func() error { return announce("docs", head) })
		both.Go(func() error { return announce("scan", head) })
		proctest.Must(0, both.Wait())(t)
	}
	awaitGiven("docs", head)
	awaitGiven("scan", head)

	git.AcceptTokens("acme/widgets", firstToken) // revokes the second
	head = push("revoked")
	proctest.Must(0, announce("scan", head))(t)
	proctest.Must(0, announce("docs", head))(t)
	awaitGiven("docs", head)
	proctest.Eventually(t, func() bool {
		known, err := state.NewStore(client, events.DefaultNamespace).Load(ctx, apps["scan"].Repo)
		return err == nil && known.IsRefused("scan", "two")
	}, "the refusal of the token of scan is recorded")
	for _, r := range resultsIn(t, client) {
		if r.Type == events.ResultFailed || r.App == "scan" && r.After == head {
			t.Errorf("unexpected result %+v", r)
		}
	}

	(&model{t: t, client: client, root: root}).assertNoToken()
	for _, p := range logs {
		if text := p.Log.String(); strings.Contains(text, firstToken) || strings.Contains(text, secondToken) {
			t.Error("a token is in a log")
		}
	}
	if got := strings.TrimSpace(string(proctest.Must(os.ReadFile(filepath.Join(root, "acme/widgets/.git/lockstep-commit")))(t))); got != head {
		t.Errorf("published %s, want %s", got, head)
	}
}
