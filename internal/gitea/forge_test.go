package gitea

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
)

const (
	version  = "1.26.2" // as in build.sh
	owner    = "owner"  // an administrator
	password = "a password of the tests"
)

// forge is a running Gitea with the organisation acme.
type forge struct {
	t    *testing.T
	base string // http://127.0.0.1:port
	ssh  string // 127.0.0.1:port
	dir  string
	home string // of git
	path string // of git, with git-lfs
}

// binary returns the folder with Gitea. It skips the test outside the soak tests, and if Gitea is not built.
func binary(t *testing.T) string {
	t.Helper()
	if !testenv.Soaking() {
		t.Skip("soak test: run make test-forge")
	}
	cache := proctest.Must(os.UserCacheDir())(t)
	dir := filepath.Join(cache, "lockstep", "gitea-"+version)
	if _, err := os.Stat(filepath.Join(dir, "gitea")); err != nil {
		if os.Getenv("LOCKSTEP_TEST_FORGE") == "real" {
			t.Fatalf("LOCKSTEP_TEST_FORGE=real, but %s is missing; run make test-forge", dir)
		}
		t.Skipf("Gitea is not built, %s is missing; run make test-forge, which takes minutes", dir)
	}
	return dir
}

// start starts Gitea until the test ends.
func start(t *testing.T) *forge {
	t.Helper()
	program := binary(t)
	dir, address, overSSH := t.TempDir(), proctest.FreeAddress(t), proctest.FreeAddress(t)
	f := &forge{t: t, base: "http://" + address, ssh: overSSH, dir: dir, home: t.TempDir(), path: program + string(filepath.ListSeparator) + os.Getenv("PATH")}
	_, port, _ := strings.Cut(address, ":")
	_, sshPort, _ := strings.Cut(overSSH, ":")
	settings := filepath.Join(dir, "app.ini")
	user := cmp.Or(os.Getenv("USER"), "root")
	if name, err := exec.Command("id", "-un").Output(); err == nil {
		user = strings.TrimSpace(string(name))
	}
	text := strings.NewReplacer("{dir}", dir, "{port}", port, "{ssh}", sshPort, "{base}", f.base, "{program}", program, "{user}", user).Replace(appIni)
	proctest.Must(0, os.WriteFile(settings, []byte(text), 0o600))(t)
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(program, "gitea"), append([]string{"--config", settings}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "GITEA_WORK_DIR="+dir)
		return cmd
	}
	for _, args := range [][]string{
		{"migrate"},
		{"admin", "user", "create", "--username", owner, "--password", password, "--email", "owner@example.com", "--admin", "--must-change-password=false"},
	} {
		if out, err := run(args...).CombinedOutput(); err != nil {
			t.Fatalf("gitea %s: %v\n%s", args[0], err, out)
		}
	}
	web, log := run("web"), &logtest.Buffer{}
	web.Stdout, web.Stderr = log, log
	proctest.Must(0, web.Start())(t)
	ended := make(chan struct{})
	go func() { _ = web.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = web.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("gitea web:\n%s", proctest.Tail(log.String(), 3000))
		}
	})
	proctest.Eventually(t, func() bool {
		select {
		case <-ended:
			t.Fatalf("gitea web ended:\n%s", log)
		default:
		}
		resp, err := http.Get(f.base + "/api/healthz")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}, "Gitea is healthy:\n%s", log)
	f.call(http.MethodPost, "/orgs", map[string]any{"username": "acme"}, nil)
	return f
}

// appIni has the settings of Gitea.
const appIni = `APP_NAME = forge
RUN_MODE = prod
RUN_USER = {user}
I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = {dir}
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = {base}/
STATIC_ROOT_PATH = {program}
START_SSH_SERVER = true
BUILTIN_SSH_SERVER_USER = git
SSH_DOMAIN = 127.0.0.1
SSH_LISTEN_HOST = 127.0.0.1
SSH_PORT = {ssh}
OFFLINE_MODE = true
LFS_START_SERVER = true
LFS_JWT_SECRET = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
[database]
DB_TYPE = sqlite3
PATH = {dir}/gitea.db
[repository]
ROOT = {dir}/repositories
DEFAULT_BRANCH = main
[lfs]
PATH = {dir}/lfs
[security]
INSTALL_LOCK = true
SECRET_KEY = of the tests
INTERNAL_TOKEN = of the tests
[webhook]
ALLOWED_HOST_LIST = loopback
[log]
MODE = console
LEVEL = warn
[oauth2]
ENABLED = false
[actions]
ENABLED = false
[indexer]
ISSUE_INDEXER_TYPE = db
[cron]
ENABLED = false
`

// call calls Gitea's API as the owner, and decodes the answer into result unless it is nil.
func (f *forge) call(method, path string, body, result any) {
	f.t.Helper()
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(proctest.Must(json.Marshal(body))(f.t))
	}
	req := proctest.Must(http.NewRequestWithContext(testenv.Context(f.t), method, f.base+"/api/v1"+path, content))(f.t)
	req.SetBasicAuth(owner, password)
	req.Header.Set("Content-Type", "application/json")
	resp := proctest.Must(http.DefaultClient.Do(req))(f.t)
	defer resp.Body.Close()
	answer := proctest.Must(io.ReadAll(resp.Body))(f.t)
	if resp.StatusCode >= 300 {
		f.t.Fatalf("%s %s: %s %s", method, path, resp.Status, answer)
	}
	if result != nil {
		proctest.Must(0, json.Unmarshal(answer, result))(f.t)
	}
}

// create creates a repository of acme with one commit, which it returns.
func (f *forge) create(name string, private bool) string {
	f.t.Helper()
	f.call(http.MethodPost, "/orgs/acme/repos", map[string]any{"name": name, "private": private, "default_branch": "main"}, nil)
	return f.push(name, "main", map[string]string{"README": name + "\n"})
}

// url returns the clone URL of a repository of acme.
func (f *forge) url(name string) string { return f.base + "/acme/" + name + ".git" }

// push commits files to a branch, pushes it and returns the commit.
func (f *forge) push(name, branch string, files map[string]string) string {
	f.t.Helper()
	dir := f.clone(name, branch)
	for path, text := range files {
		proctest.Must(0, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))(f.t)
	}
	f.git(dir, "add", "--all")
	f.git(dir, "commit", "--quiet", "--message", "a push")
	f.git(dir, "push", "--quiet", "origin", "HEAD:refs/heads/"+branch)
	return f.git(dir, "rev-parse", "HEAD")
}

// clone clones a repository, as the owner, with a new or existing branch checked out, and returns the folder.
func (f *forge) clone(name, branch string) string {
	f.t.Helper()
	dir := filepath.Join(f.t.TempDir(), name)
	remote := strings.Replace(f.url(name), "http://", fmt.Sprintf("http://%s:%s@", owner, strings.ReplaceAll(password, " ", "%20")), 1)
	f.git(f.home, "clone", "--quiet", remote, dir)
	f.git(dir, "checkout", "--quiet", "-B", branch)
	return dir
}

// git runs git and returns its output.
func (f *forge) git(dir string, args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(testenv.Context(f.t), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+f.home, "PATH="+f.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// token creates a token of the owner with a scope.
func (f *forge) token(name, scope string) string {
	f.t.Helper()
	var token struct{ SHA1 string }
	f.call(http.MethodPost, "/users/"+owner+"/tokens", map[string]any{"name": name, "scopes": []string{scope}}, &token)
	return token.SHA1
}

// sshCredential makes a key of the owner, and returns the files of a credential with it.
func (f *forge) sshCredential() map[string]string {
	f.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	proctest.Must(0, err)(f.t)
	authorized := ssh.MarshalAuthorizedKey(proctest.Must(ssh.NewPublicKey(public))(f.t))
	f.call(http.MethodPost, "/user/keys", map[string]any{"title": "of the tests", "key": string(authorized)}, nil)
	host := proctest.Must(os.ReadFile(filepath.Join(f.dir, "data", "ssh", "gitea.rsa.pub")))(f.t)
	address, port, _ := strings.Cut(f.ssh, ":")
	return map[string]string{
		"sshKey":     string(pem.EncodeToMemory(proctest.Must(ssh.MarshalPrivateKey(private, ""))(f.t))),
		"knownHosts": fmt.Sprintf("[%s]:%s %s", address, port, host),
		"urls":       f.sshURL("") + "\n",
	}
}

// sshURL returns the clone URL of a repository of acme over SSH, or the prefix of all for "".
func (f *forge) sshURL(name string) string {
	prefix := "ssh://git@" + f.ssh + "/acme/"
	if name == "" {
		return prefix
	}
	return prefix + name + ".git"
}

// redeliver delivers a webhook again, as an administrator does in the browser: the API cannot. hook is its path in the API.
func (f *forge) redeliver(hook, delivery string) {
	f.t.Helper()
	browser := &http.Client{Jar: proctest.Must(cookiejar.New(nil))(f.t)}
	_, id, _ := strings.Cut(hook, "/hooks/")
	for _, request := range []struct {
		path string
		form url.Values
	}{
		{"/user/login", url.Values{"user_name": {owner}, "password": {password}}},
		{"/org/acme/settings/hooks/" + id + "/replay/" + delivery, nil},
	} {
		resp := proctest.Must(browser.PostForm(f.base+request.path, request.form))(f.t)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			f.t.Fatalf("POST %s: %s", request.path, resp.Status)
		}
	}
}

// hook creates a webhook of acme to url, and returns its path in the API.
func (f *forge) hook(url, secret string) string {
	f.t.Helper()
	var hook struct{ ID int }
	f.call(http.MethodPost, "/orgs/acme/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"push", "delete", "repository"},
		"config": map[string]string{"url": url, "content_type": "json", "secret": secret},
	}, &hook)
	return fmt.Sprintf("/orgs/acme/hooks/%d", hook.ID)
}
