package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

// TestEachAppIsServedWithItsOwnToken has two apps watch one repository with two tokens, while it is pushed to.
func TestEachAppIsServedWithItsOwnToken(t *testing.T) {
	ctx := context.Background()
	git, server, root := startGit(t), redistest.Start(t), t.TempDir()
	client := server.Client()
	head := must(git.Create(ctx, "acme/widgets", map[string]string{"a": "1"}))(t)
	url := git.URL("acme/widgets")
	git.AcceptTokens("acme/widgets", firstToken, secondToken)
	prefix := strings.TrimSuffix(url, "acme/widgets.git")
	var logs []*process
	for range 2 {
		cmd := command(t, "serve", "--redis", server.URL(), "--root", root, "--log-level", "debug")
		cmd.Env = append(os.Environ(),
			"LOCKSTEP_CREDENTIAL_ONE_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ONE_URLS="+prefix,
			"LOCKSTEP_CREDENTIAL_TWO_PASSWORD="+secondToken, "LOCKSTEP_CREDENTIAL_TWO_URLS="+prefix)
		logs = append(logs, startCommand(t, cmd))
	}
	apps := map[string]watch.Watch{
		"docs": must(watch.New(watch.Watch{App: "docs", URL: url, Credential: "one"}))(t),
		"scan": must(watch.New(watch.Watch{App: "scan", URL: url, Credential: "two"}))(t),
	}
	must(watch.NewRegistry(client, events.DefaultNamespace).Put(ctx, apps["docs"], apps["scan"]))(t)
	awaitGiven := func(app, commit string) {
		t.Helper()
		eventually(t, func() bool {
			return slices.ContainsFunc(resultsSoFar(t, client), func(r events.Result) bool { return r.App == app && r.After == commit })
		}, "%s is given %.12s", app, commit)
	}
	awaitGiven("docs", head)
	awaitGiven("scan", head)

	announce := func(app, commit string) error {
		change, err := apps[app].Change(app+"-"+commit, "/test", events.Ref{}, commit)
		if err != nil {
			return err
		}
		return publish(ctx, client, (&demo{}).config(), change)
	}
	push := func(n string) string {
		return must(git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"a": n}}))(t)
	}
	for app, token := range map[string]string{"docs": firstToken, "scan": secondToken} { // one at a time
		before := len(git.TokensSeen("acme/widgets"))
		head = push(app)
		must(0, announce(app, head))(t)
		awaitGiven(app, head)
		for _, seen := range git.TokensSeen("acme/widgets")[before:] {
			if seen != token {
				t.Errorf("an operation of %s used another token than its own", app)
			}
		}
	}
	for n := range 10 { // both at once
		head = push(strings.Repeat("x", n+2))
		var both errgroup.Group
		both.Go(func() error { return announce("docs", head) })
		both.Go(func() error { return announce("scan", head) })
		must(0, both.Wait())(t)
	}
	awaitGiven("docs", head)
	awaitGiven("scan", head)

	git.AcceptTokens("acme/widgets", firstToken) // and the second is revoked
	head = push("revoked")
	must(0, announce("scan", head))(t)
	must(0, announce("docs", head))(t)
	awaitGiven("docs", head)
	eventually(t, func() bool {
		return slices.ContainsFunc(resultsSoFar(t, client), func(r events.Result) bool {
			return r.Type == events.ResultFailed && r.App == "scan" && r.Class == events.ClassAuth
		})
	}, "scan is told that its token is refused")
	for _, r := range resultsSoFar(t, client) {
		if r.Type == events.ResultFailed && r.App != "scan" || r.App == "scan" && r.After == head {
			t.Errorf("unexpected result %+v", r)
		}
	}

	(&model{t: t, client: client, root: root}).assertNoToken()
	for _, p := range logs {
		if text := p.log.String(); strings.Contains(text, firstToken) || strings.Contains(text, secondToken) {
			t.Error("a token is in a log")
		}
	}
	if got := strings.TrimSpace(string(must(os.ReadFile(filepath.Join(root, "acme/widgets/.git/lockstep-commit")))(t))); got != head {
		t.Errorf("published %s, want %s", got, head)
	}
}
