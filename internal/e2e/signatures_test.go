package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/watch"
)

// signing is a deployment whose watches have rules, with a worker and a remote.
type signing struct {
	t      *testing.T
	git    *gitserver.Server
	client redis.UniversalClient
	url    string // of Redis
	root   string
	keys   string // folder of the credential "team"
	seen   int    // results read
}

const signedRepo = "acme/widgets"

var requireTeam = signatures.Options{Verify: signatures.VerifyRequire, Keys: "team"}

func startSigning(t *testing.T) *signing {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("ssh-keygen is not installed")
	}
	server, credentials := redistest.Start(t), t.TempDir()
	s := &signing{t: t, git: proctest.StartGit(t), client: server.Client(), url: server.URL(), root: t.TempDir(), keys: filepath.Join(credentials, "team")}
	proctest.Must(0, os.Mkdir(s.keys, 0o700))(t)
	proctest.Must(s.git.Create(t.Context(), signedRepo, map[string]string{"README": "0"}))(t)
	p := proctest.Start(t, "serve", "--redis", s.url, "--root", s.root, "--credentials", credentials, "--roles", "worker")
	p.AwaitLog("worker takes changes")
	return s
}

// key makes a key and returns its path.
func (s *signing) key(name string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), name)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path).CombinedOutput(); err != nil {
		s.t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	return path
}

// trust makes the keys the only trusted ones.
func (s *signing) trust(keys ...string) {
	s.t.Helper()
	var text strings.Builder
	for _, key := range keys {
		text.WriteString(filepath.Base(key) + "@example.com " + string(proctest.Must(os.ReadFile(key+".pub"))(s.t)))
	}
	next := filepath.Join(filepath.Dir(s.keys), "next")
	proctest.Must(0, os.WriteFile(next, []byte(text.String()), 0o600))(s.t)
	proctest.Must(0, os.Rename(next, filepath.Join(s.keys, "allowedSigners")))(s.t)
}

func (s *signing) run(args ...string) string {
	s.t.Helper()
	return strings.TrimSpace(proctest.Must(s.git.Git(context.Background(), signedRepo, "", args...))(s.t))
}

// push commits a file on top of a parent, signs the commit unless key is "", and sets main to it.
func (s *signing) push(parent, content, key string) string {
	s.t.Helper()
	blob := proctest.Must(s.git.Blob(s.t.Context(), signedRepo, content))(s.t)
	tree := proctest.Must(s.git.Tree(s.t.Context(), signedRepo, gitserver.Entry{Mode: "100644", Name: "README", Hash: blob}))(s.t)
	args := []string{"commit-tree", "-m", content, "-p", parent}
	if key != "" {
		args = append([]string{"-c", "gpg.format=ssh", "-c", "user.signingKey=" + key}, append(args, "-S")...)
	}
	commit := s.run(append(args, tree)...)
	s.run("update-ref", "refs/heads/main", commit)
	return commit
}

func (s *signing) watch(w watch.Watch) {
	s.t.Helper()
	w.URL, w.Poll = s.git.URL(signedRepo), watch.Never
	proctest.Must(watch.NewRegistry(s.client, events.DefaultNamespace).Put(s.t.Context(), w))(s.t)
}

// next returns the next n results, without polls.
func (s *signing) next(n int) map[string]events.Result {
	s.t.Helper()
	byApp := map[string]events.Result{}
	for len(byApp) < n {
		s.seen++
		r := proctest.AwaitResults(s.t, s.client, s.seen)[s.seen-1]
		if r.Type != events.ResultPolled {
			byApp[r.App] = r
		}
	}
	return byApp
}

func (s *signing) publish(fields ...string) {
	s.t.Helper()
	values := append([]string{"url", s.git.URL(signedRepo)}, fields...)
	proctest.Must(s.client.XAdd(s.t.Context(), &redis.XAddArgs{Stream: events.DefaultNamespace.Changes(), Values: values}).Result())(s.t)
}

// poll polls the repository and returns the number of changes that the poll requests.
func (s *signing) poll() int {
	s.t.Helper()
	s.publish("type", "due", "repo", signedRepo)
	s.seen++
	r := proctest.AwaitResults(s.t, s.client, s.seen)[s.seen-1]
	if r.Type != events.ResultPolled {
		s.t.Fatalf("got %+v, want a poll", r)
	}
	return r.Due
}

// mustRead checks what readers see.
func (s *signing) mustRead(name, content string) {
	s.t.Helper()
	if got := string(proctest.Must(os.ReadFile(filepath.Join(s.root, name, "README")))(s.t)); got != content {
		s.t.Errorf("readers of %s see %q, want %q", name, got, content)
	}
}

func (s *signing) mustRefuse(r events.Result, class events.Class, text string) {
	s.t.Helper()
	if r.Type != events.ResultFailed || r.Class != class || r.Retryable || r.Attempts != 1 || !strings.Contains(r.Error, text) {
		s.t.Errorf("got %+v, want class %s and %q", r, class, text)
	}
}

// TestRequiredSignatures lets one app require signatures and another not, and checks that their shared tree stays at the last
// verified commit.
func TestRequiredSignatures(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	alice, bob := s.key("alice"), s.key("bob")
	s.trust(alice)
	first := s.push(s.git.Head(signedRepo, "refs/heads/main"), "1", alice)
	s.watch(watch.Watch{App: "deploy", Options: watch.With(requireTeam)})
	if r := s.next(1)["deploy"]; r.After != first || r.Verification == nil || !r.Verification.Verified ||
		r.Verification.By != "alice@example.com" || r.Verification.Commits != 1 {
		t.Fatalf("signed: got %+v, %+v", r, r.Verification)
	}
	s.watch(watch.Watch{App: "docs"})
	if r := s.next(1)["docs"]; r.After != first || r.Verification != nil {
		t.Errorf("an app without rules: got %+v", r)
	}

	second := s.push(first, "2", bob)
	s.publish("app", "docs")
	r := s.next(1)["docs"]
	s.mustRefuse(r, events.ClassRefused, "which app deploy requires: key SHA256:")
	if v := r.Verification; v == nil || v.Verified || v.ID != second || v.By != "" || !strings.HasSuffix(v.Reason, "is not trusted") {
		t.Errorf("got %+v", v)
	}
	s.mustRead(signedRepo, "1")
	if n := s.poll(); n != 1 {
		t.Errorf("the poll requests %d changes, want that of the app that was not told", n)
	}
	s.mustRefuse(s.next(1)["deploy"], events.ClassRefused, "is not trusted")
	if n := s.poll(); n != 0 {
		t.Errorf("the poll requests %d changes for a commit that was refused", n)
	}
	for command, want := range map[string]string{
		"status": "commits refused: 1", "repos show " + signedRepo: "commit " + second[:12], "repos ls --json": `"refs/heads/main"`,
	} {
		stdout, stderr, _ := proctest.RunLockstep(t, nil, append(strings.Fields(command), "--redis", s.url)...)
		if !strings.Contains(stdout, want) {
			t.Errorf("%s: %s%s", command, stdout, stderr)
		}
	}

	s.trust(alice, bob)
	if n := s.poll(); n != 2 {
		t.Errorf("the poll requests %d changes after the keys have changed, want 2", n)
	}
	if got := s.next(2); got["deploy"].After != second || got["docs"].After != second || got["deploy"].Verification.By != "bob@example.com" {
		t.Errorf("with the key: got %+v", got)
	}
	s.mustRead(signedRepo, "2")
	if stdout, _, _ := proctest.RunLockstep(t, nil, "status", "--redis", s.url); strings.Contains(stdout, "commits refused") {
		t.Errorf("status: %s", stdout)
	}

	s.trust(alice) // what is published is checked again
	if n := s.poll(); n != 1 {
		t.Errorf("the poll requests %d changes after a key was removed, want 1", n)
	}
	s.mustRefuse(s.next(1)["deploy"], events.ClassRefused, "is not trusted")
	s.mustRead(signedRepo, "2")
	proctest.Must(0, os.Remove(filepath.Join(s.keys, "allowedSigners")))(t)
	s.publish("app", "deploy")
	s.mustRefuse(s.next(1)["deploy"], events.ClassRefused, "has no keys to verify signatures with")
	s.watch(watch.Watch{App: "deploy"})
	if r := s.next(2)["deploy"]; r.After != second || r.Verification != nil || r.Type != events.ResultSynced {
		t.Errorf("without the rule: got %+v", r)
	}
}

// TestEveryNewCommitIsVerified keeps history, so that one unsigned commit among signed ones is found.
func TestEveryNewCommitIsVerified(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	alice := s.key("alice")
	s.trust(alice)
	base := s.git.Head(signedRepo, "refs/heads/main")
	first := s.push(base, "1", alice)
	s.watch(watch.Watch{App: "deploy", Depth: events.DepthFull, Options: watch.With(requireTeam)})
	if r := s.next(1)["deploy"]; r.After != first {
		t.Fatalf("got %+v", r)
	}
	last := s.push(s.push(s.push(first, "2", alice), "3", alice), "4", alice)
	s.publish("app", "deploy", "depth", "full")
	if r := s.next(1)["deploy"]; r.After != last || r.Verification.Commits != 3 || r.Verification.Partial || r.Forced {
		t.Errorf("three commits: got %+v, %+v", r, r.Verification)
	}
	unsigned := s.push(last, "5", "")
	s.push(unsigned, "6", alice)
	s.publish("app", "deploy", "depth", "full")
	r := s.next(1)["deploy"]
	s.mustRefuse(r, events.ClassRefused, "commit "+unsigned[:12]+" of refs/heads/main is not verified, which app deploy requires: it is not signed")
	s.mustRead(signedRepo, "4")
}

// TestSignedTags requires tags to be signed themselves, under their own names.
func TestSignedTags(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	alice := s.key("alice")
	s.trust(alice)
	commit := s.push(s.git.Head(signedRepo, "refs/heads/main"), "1", alice)
	tag := func(name, key string) string {
		args := []string{"tag", "-m", "a tag", "-a", name, commit}
		if key != "" {
			args = []string{"-c", "gpg.format=ssh", "-c", "user.signingKey=" + key, "tag", "-m", "a tag", "-s", name, commit}
		}
		s.run(args...)
		return s.run("rev-parse", "refs/tags/"+name)
	}
	s.watch(watch.Watch{App: "deploy"}) // so that the clone has the commit of each tag
	s.next(1)
	signed := tag("v1", alice)
	tag("v2", "")
	s.run("update-ref", "refs/tags/v3", signed)
	s.run("update-ref", "refs/tags/v4", commit)
	s.watch(watch.Watch{App: "deploy", Ref: proctest.Must(watch.ParseSelector("refs/tags/v*"))(t), Options: watch.With(requireTeam)})
	byRef := map[string]events.Result{}
	for len(byRef) < 4 {
		for _, r := range s.next(1) {
			byRef[r.Ref.String()] = r
		}
	}
	if v := byRef["refs/tags/v1"].Verification; v == nil || !v.Verified || v.Object != "tag" || v.ID != signed {
		t.Errorf("a signed tag: got %+v", byRef["refs/tags/v1"])
	}
	s.mustRefuse(byRef["refs/tags/v2"], events.ClassRefused, "it is not signed")
	s.mustRefuse(byRef["refs/tags/v3"], events.ClassRefused, `it is the tag "v1" under another name`)
	if v := byRef["refs/tags/v4"].Verification; v == nil || !v.Verified || v.Object != "commit" {
		t.Errorf("a lightweight tag of a signed commit: got %+v", byRef["refs/tags/v4"])
	}
	s.mustRead(byRef["refs/tags/v1"].Path, "1")
	if _, err := os.Lstat(filepath.Join(s.root, strings.Replace(byRef["refs/tags/v1"].Path, "v1", "v2", 1))); err == nil {
		t.Error("an unsigned tag is published")
	}
	s.publish("app", "deploy", "ref", "refs/tags/v1")
	if r := s.next(1)["deploy"]; r.Type != events.ResultSynced || r.Verification == nil || !r.Verification.Verified {
		t.Errorf("again: got %+v", r)
	}
}
