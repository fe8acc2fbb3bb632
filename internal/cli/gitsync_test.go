package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

// TestGitSyncFollowsPushes runs lockstep git-sync with variables and hooks that fail at first.
func TestGitSyncFollowsPushes(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	commit := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"file": "1"}))(t)
	var mu sync.Mutex
	var hooked []string
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		hooked = append(hooked, r.Method+" "+r.Header.Get("Gitsync-Hash"))
		if len(hooked) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(app.Close)
	calls := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(hooked)
	}
	dir, address := t.TempDir(), proctest.FreeAddress(t)
	hook := filepath.Join(dir, "hook")
	script := fmt.Sprintf("#!/bin/sh\necho $GITSYNC_HASH $(env | grep -c hunter2) >>%s/runs\ntest $(wc -l <%s/runs) -gt 1\n", dir, dir)
	proctest.Must(0, os.WriteFile(hook, []byte(script), 0o755))(t)
	cmd := proctest.Command(t, "git-sync", "--link", "link")
	cmd.Env = append(os.Environ(), "GITSYNC_REPO="+strings.Replace(git.URL("acme/widgets"), "http://", "http://ada:hunter2@", 1), "GITSYNC_REF=main",
		"GITSYNC_ROOT="+filepath.Join(dir, "git"), "GITSYNC_PERIOD=100ms", "GITSYNC_EXECHOOK_COMMAND="+hook, "GITSYNC_EXECHOOK_BACKOFF=50ms",
		"GITSYNC_WEBHOOK_URL="+strings.Replace(app.URL, "http://", "http://x:hunter2@", 1)+"/hunter2", "GITSYNC_WEBHOOK_METHOD=PUT", "GITSYNC_WEBHOOK_BACKOFF=50ms", "GITSYNC_HTTP_BIND="+address, "GITSYNC_HTTP_METRICS=true")
	git.RequireAuth("acme/widgets", "ada", "hunter2")
	p := proctest.StartCommand(t, cmd)
	file := filepath.Join(dir, "git/link/file")
	read := func(path string) string { text, _ := os.ReadFile(path); return string(text) }
	proctest.Eventually(t, func() bool { return read(file) == "1" }, "the first tree is published")
	proctest.Eventually(t, func() bool {
		return answerOf(address, "/") == http.StatusOK && answerOf(address, "/metrics") == http.StatusOK
	}, "HTTP answers")
	runs := func() string { return read(filepath.Join(dir, "runs")) }
	proctest.Eventually(t, func() bool { return strings.Count(runs(), commit) == 2 && calls() == 2 }, "the hooks are called again")
	next := proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"file": "2"}}))(t)
	proctest.Eventually(t, func() bool { return read(file) == "2" }, "the push is published")
	// each is called again after its failure, and once for the next commit
	proctest.Eventually(t, func() bool { return calls() == 3 }, "the webhook is called")
	if want := []string{"PUT " + commit, "PUT " + commit, "PUT " + next}; !slices.Equal(hooked, want) {
		t.Errorf("called %q, want %q", hooked, want)
	}
	want := fmt.Sprintf("%s 0\n%s 0\n%s 0\n", commit, commit, next)
	proctest.Eventually(t, func() bool { return runs() == want }, "the hook runs")
	if code := p.Terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.Log.String(); strings.Contains(log, "hunter2") || strings.Count(log, "will retry") == 0 {
		t.Error("the log has the password, or no failure")
	}
}

func answerOf(address, path string) int {
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// TestGitSyncSaysWhyItFails revokes a password, and never accepts it again.
func TestGitSyncSaysWhyItFails(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"file": "1"}))(t)
	git.RequireAuth("acme/widgets", "ada", "hunter2")
	root := t.TempDir()
	p := proctest.StartCommand(t, proctest.Command(t, "git-sync", "--link", "link", "--repo", git.URL("acme/widgets"), "--root", root,
		"--username", "ada", "--password", "hunter2", "--period", "100ms", "--sync-timeout", "2s", "--max-failures", "2"))
	proctest.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(root, "link/file")); return err == nil }, "the first tree is published")
	git.RequireAuth("acme/widgets", "ada", "hunter3")
	if code := p.AwaitExit(time.Minute); code == 0 {
		t.Error("exit code 0")
	}
	log := p.Log.String()
	if strings.Count(log, "sync failed, will retry") != 1 || strings.Count(log, "401") < 2 {
		t.Errorf("want one failure with its cause, then another one:\n%s", log)
	}
}

// TestGitSyncRetriesAHookWithoutASync has a period in which the hook is called again, and a webhook never configured.
func TestGitSyncRetriesAHookWithoutASync(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"file": "1"}))(t)
	dir := t.TempDir()
	hook, runs := filepath.Join(dir, "hook"), filepath.Join(dir, "runs")
	proctest.Must(0, os.WriteFile(hook, []byte("#!/bin/sh\necho run >>"+runs+"\ntest $(wc -l <"+runs+") -gt 2\n"), 0o755))(t)
	p := proctest.StartCommand(t, proctest.Command(t, "git-sync", "--repo", git.URL("acme/widgets"), "--root", filepath.Join(dir, "git"),
		"--period", "1h", "--exechook-command", hook, "--exechook-backoff", "50ms", "--webhook-backoff", "0"))
	proctest.Eventually(t, func() bool { return strings.Count(p.Log.String(), "exechook called") == 3 }, "the hook is retried")
	if code := p.Terminate(); code != 0 || strings.Count(p.Log.String(), "will retry") != 2 {
		t.Errorf("exit code %d", code)
	}
}

// TestGitSyncStoppedBeforeItsOnlySync has a remote that never answers.
func TestGitSyncStoppedBeforeItsOnlySync(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(remote.Close)
	p := proctest.StartCommand(t, proctest.Command(t, "git-sync", "--one-time", "--repo", remote.URL+"/acme/widgets.git", "--root", t.TempDir()))
	<-asked
	if code := p.Terminate(); code == 0 {
		t.Error("exit code 0")
	}
}

// TestGitSyncOfTagsAndPrivateRepositories syncs once over HTTP and SSH.
func TestGitSyncOfTagsAndPrivateRepositories(t *testing.T) {
	t.Parallel()
	git := proctest.StartGit(t)
	commit := proctest.Must(git.Create(t.Context(), "acme/widgets", map[string]string{"file": "1"}))(t)
	proctest.Must(0, git.Tag(t.Context(), "acme/widgets", "v1", commit))(t)
	proctest.Must(git.Commit(t.Context(), "acme/widgets", gitserver.Main, gitserver.Edit{Write: map[string]string{"file": "2"}}))(t)
	git.RequireAuth("acme/widgets", "ada", "hunter2")
	ssh := testenv.Must(git.StartSSH())(t)
	t.Cleanup(ssh.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		proctest.Must(0, os.WriteFile(path, []byte(text), 0o600))(t)
		return path
	}
	password, wrong := write("password", "hunter2\n"), write("wrong", "hunter3")
	key, hosts, noHosts := write("key", ssh.ClientKey), write("hosts", ssh.KnownHosts()), write("none", "")
	for name, tc := range map[string]struct {
		args []string
		want string // content, "" if it fails
	}{
		"tag":               {[]string{"--repo", git.URL("acme/widgets"), "--ref", "v1", "--username", "ada", "--password-file", password}, "1"},
		"full ref of a tag": {[]string{"--repo", git.URL("acme/widgets"), "--ref", "refs/tags/v1", "--username", "ada", "--password-file", password}, "1"},
		"commit":            {[]string{"--repo", git.URL("acme/widgets"), "--ref", commit, "--username", "ada", "--password", "hunter2"}, "1"},
		"branch":            {[]string{"--repo", git.URL("acme/widgets"), "--ref", "main", "--username", "ada", "--password", "hunter2"}, "2"},
		"wrong password":    {[]string{"--repo", git.URL("acme/widgets"), "--username", "ada", "--password-file", wrong}, ""},
		"no password":       {[]string{"--repo", git.URL("acme/widgets")}, ""},
		"SSH":               {[]string{"--repo", ssh.URL("acme/widgets"), "--ssh-key-file", key, "--ssh-known-hosts-file", hosts}, "2"},
		"SSH, other host":   {[]string{"--repo", ssh.URL("acme/widgets"), "--ssh-key-file", key, "--ssh-known-hosts-file", noHosts}, ""},
		"SSH, no key":       {[]string{"--repo", ssh.URL("acme/widgets"), "--ssh-key-file", noHosts, "--ssh-known-hosts-file", hosts}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			_, stderr, code := proctest.RunLockstep(t, nil, append([]string{"git-sync", "--one-time", "--root", root, "--link", "link"}, tc.args...)...)
			content, _ := os.ReadFile(filepath.Join(root, "link/file"))
			if string(content) != tc.want || (code == 0) != (tc.want != "") {
				t.Errorf("file %q, want %q; exit code %d\n%s", content, tc.want, code, stderr)
			}
		})
	}
}
