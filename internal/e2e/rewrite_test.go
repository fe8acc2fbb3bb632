package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// TestRemotesAreAskedElsewhere has a watch, a submodule and an LFS server whose URLs are of a forge that does not exist. They are rewritten to
// a mirror with a token, whose webhooks name its own URLs.
func TestRemotesAreAskedElsewhere(t *testing.T) {
	t.Parallel()
	const forge = "https://forge.invalid/"
	git, server, root := proctest.StartGit(t), redistest.Start(t), t.TempDir()
	mirror := git.URL("")[:len(git.URL(""))-len("/.git")] + "/"
	lib := proctest.Must(git.Create(t.Context(), "acme/lib", map[string]string{"l": "library"}))(t)
	proctest.Must(0, git.CreateEmpty(t.Context(), "acme/widgets"))(t)
	edit := gitserver.Edit{
		Write: map[string]string{
			".gitmodules":    "[submodule \"lib\"]\n\tpath = lib\n\turl = git@forge.invalid:acme/lib.git\n",
			".gitattributes": "*.bin filter=lfs\n", "a.bin": git.LFS("acme/widgets").Put("large"),
		},
		Submodule: map[string]string{"lib": lib},
	}
	before := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, edit))(t)
	git.AcceptTokens("acme/widgets", firstToken)
	git.AcceptTokens("acme/lib", firstToken)

	client, repo := server.Client(), proctest.Must(events.ParseRepoPath("acme/widgets"))(t)
	stdout, stderr, code := proctest.RunLockstep(t, nil, "watch", "add", forge+"acme/widgets.git", "--app", "docs", "--credential", "one",
		"--lfs", "fetch", "--submodules", "required", "--redis", server.URL(), "--no-check")
	if code != term.ExitDone {
		t.Fatalf("watch add: %d: %s%s", code, stdout, stderr)
	}
	address := proctest.FreeAddress(t)
	cmd := proctest.Command(t, "serve", "--redis", server.URL(), "--root", root, "--listen", address, "--hooks", writeHooks(t, t.TempDir()), "--poll-every", "0s",
		"--rewrite", forge+"="+mirror, "--rewrite", "ssh://git@forge.invalid/="+mirror)
	cmd.Env = append(os.Environ(), "LOCKSTEP_CREDENTIAL_ONE_PASSWORD="+firstToken, "LOCKSTEP_CREDENTIAL_ONE_URLS="+mirror)
	proctest.StartCommand(t, cmd)
	has := func(name, content string) bool {
		got, err := os.ReadFile(filepath.Join(root, "acme/widgets", name))
		return err == nil && string(got) == content
	}
	proctest.Eventually(t, func() bool { return has("lib/l", "library") && has("a.bin", "large") }, "the tree is published")

	for id, url := range map[string]string{"mirror": git.URL("acme/widgets"), "forge": forge + "acme/widgets"} {
		edit.Write["version"] = id
		after := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, edit))(t)
		webhook{id: id, repo: "acme/widgets", url: url, before: before, after: after}.mustSend(t, address)
		proctest.Eventually(t, func() bool { return has("version", id) }, "the push that the %s announces is published", id)
		before = after
	}
	proctest.Eventually(t, func() bool { return isQuiet(t.Context(), client) }, "all changes are settled")
	set := proctest.Must(watch.NewRegistry(client, events.DefaultNamespace).Of(t.Context(), repo))(t)
	if len(set.Watches) != 1 || set.Watches[0].URL != forge+"acme/widgets.git" {
		t.Errorf("watches: %+v", set.Watches)
	}
	bound := string(proctest.Must(os.ReadFile(filepath.Join(root, ".lockstep/repos/acme/widgets/repo.json")))(t))
	if got := proctest.DecodeJSON(t, bound)["remote"]; got != forge+"acme/widgets.git" {
		t.Errorf("bound to %v", got)
	}
}
