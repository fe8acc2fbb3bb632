package gitea

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/proctest"
)

func TestSignedWebhooksOfGitea(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	first := f.create("widgets", false)
	hook := f.hook(s.hooks, secret)
	// Gitea answers 401 to anonymous requests for a deleted repository, which proves nothing, and 404 to a token.
	s.write(filepath.Join(s.credentials, "reads"), map[string]string{"username": owner, "password": f.token("reads", "read:repository"), "urls": f.base + "/acme/\n"})
	s.watch(f.url("widgets"), "--app", "docs", "--credential", "reads")
	s.watch(f.url("widgets"), "--app", "ci", "--credential", "reads", "--ref", "refs/heads/release-*")
	s.synced("docs", first)

	second := f.push("widgets", "main", map[string]string{"README": "second\n"})
	if r, _ := s.synced("docs", second); r.Before != first || len(r.Files) != 1 || s.read("acme/widgets/README") != "second\n" {
		t.Errorf("the push of README: %+v", r)
	}

	branch := f.push("widgets", "release-1.0", map[string]string{"NOTES": "1.0\n"})
	r, _ := s.synced("ci", branch)
	if s.read(filepath.Join(r.Path, "NOTES")) != "1.0\n" {
		t.Errorf("the push of a branch: %+v", r)
	}
	f.call(http.MethodDelete, "/repos/acme/widgets/branches/release-1.0", nil, nil)
	s.await("the branch is removed", func(r events.Result) bool {
		return r.Type == events.ResultRemoved && r.Ref.String() == "refs/heads/release-1.0"
	})
	if s.published(r.Path) || !s.published("acme/widgets") {
		t.Error("want the name of the deleted branch gone, and that of the default branch kept")
	}

	// What is signed with another secret is refused, and has no effect.
	f.call(http.MethodDelete, hook, nil, nil)
	hook = f.hook(s.hooks, "another one")
	refused := f.push("widgets", "main", map[string]string{"README": "third\n"})
	s.process.AwaitLog(`msg="webhook refused"`)
	f.call(http.MethodDelete, hook, nil, nil)
	f.hook(s.hooks, secret)
	third := f.push("widgets", "main", map[string]string{"README": "fourth\n"})
	if _, before := s.synced("docs", third); hasAfter(before, refused) {
		t.Errorf("a webhook with another secret was accepted: %+v", before)
	}

	f.call(http.MethodDelete, "/repos/acme/widgets", nil, nil)
	s.await("the repository is removed", func(r events.Result) bool { return r.Type == events.ResultRemoved && r.Ref.IsZero() })
	if s.published("acme/widgets") {
		t.Error("the deleted repository is still published")
	}
	proctest.AssertIdle(t, s.redis.Client())
}

func hasAfter(results []events.Result, commit string) bool {
	for _, r := range results {
		if r.After == commit {
			return true
		}
	}
	return false
}

func TestRepositoryCreatedInGiteaIsWatched(t *testing.T) {
	t.Parallel()
	f := start(t)
	s := serve(t, "everyone", f.base+"/acme/")
	f.hook(s.hooks, secret)
	s.synced("everyone", f.create("gadgets", false))
	if got := s.read("acme/gadgets/README"); got != "gadgets\n" {
		t.Errorf("README %q", got)
	}
}

func TestRepositoryRenamedInGitea(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	f.hook(s.hooks, secret)
	stays, follows := f.create("stays", false), f.create("follows", false)
	s.watch(f.url("stays"), "--app", "docs", "--poll", "1s")
	s.watch(f.url("follows"), "--app", "docs", "--poll", "1s", "--follow-moves")
	s.await("both are synced", both(stays, follows))
	f.call(http.MethodPatch, "/repos/acme/stays", map[string]any{"name": "stays-2"}, nil)
	f.call(http.MethodPatch, "/repos/acme/follows", map[string]any{"name": "follows-2"}, nil)

	moved, _ := s.await("the repository moves", func(r events.Result) bool { return r.Type == events.ResultMoved })
	if moved.Repo.String() != "acme/follows" || moved.To.String() != "acme/follows-2" || s.read("acme/follows-2/README") != "follows\n" {
		t.Errorf("%+v", moved)
	}
	// Its watch has the new URL now, so that webhooks find it; the other is fetched through the redirect.
	if watches := s.run("watch", "export"); !strings.Contains(watches, "url: "+f.url("follows-2")) || !strings.Contains(watches, "url: "+f.url("stays")+"\n") {
		t.Errorf("watches:\n%s", watches)
	}
	s.run("watch", "set", "acme/follows-2", "--app", "docs", "--poll", "never")
	s.synced("docs", f.push("follows-2", "main", map[string]string{"README": "by webhook\n"}))
	if r, _ := s.synced("docs", f.push("stays-2", "main", map[string]string{"README": "by poll\n"})); r.Path != "acme/stays" {
		t.Errorf("%+v", r)
	}
}

// both returns a function that is true once both commits were synced.
func both(one, two string) func(events.Result) bool {
	seen := map[string]bool{}
	return func(r events.Result) bool {
		seen[r.After] = true
		return seen[one] && seen[two]
	}
}

func TestPrivateRepositoryOfGitea(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	f.hook(s.hooks, secret)
	first := f.create("private", true)
	for name, scope := range map[string]string{"reads": "read:repository", "wrong": "read:user"} {
		s.write(filepath.Join(s.credentials, name), map[string]string{"username": owner, "password": f.token(name, scope), "urls": f.base + "/acme/\n"})
	}
	failed := func(app string) events.Result {
		r, _ := s.await(app+" is refused", func(r events.Result) bool { return r.Type == events.ResultFailed && r.App == app })
		return r
	}
	s.watch(f.url("private"), "--app", "docs", "--credential", "reads")
	s.synced("docs", first)
	for app, args := range map[string][]string{"anyone": nil, "other": {"--credential", "wrong"}} {
		s.watch(f.url("private"), append([]string{"--app", app}, args...)...)
		if r := failed(app); r.Class != events.ClassAuth && r.Class != events.ClassNotFound {
			t.Errorf("app %s without permission: %+v", app, r)
		}
	}
	second := f.push("private", "main", map[string]string{"README": "second\n"})
	if _, before := s.synced("docs", second); hasAfter(others(before), second) {
		t.Errorf("an app without permission received a commit: %+v", before)
	}

	f.call(http.MethodDelete, "/users/"+owner+"/tokens/reads", nil, nil)
	third := f.push("private", "main", map[string]string{"README": "third\n"})
	s.awaitShown("private", `"auth"`) // the app keeps what it has until that is confirmed
	if got := s.read("acme/private/README"); got != "second\n" {
		t.Errorf("after its token was revoked: %q", got)
	}
	s.write(filepath.Join(s.credentials, "reads"), map[string]string{"password": f.token("again", "read:repository")})
	s.synced("docs", third)
}

// TestRedeliveryOfGitea delivers the webhook of an older push again, which Gitea does under another ID.
func TestRedeliveryOfGitea(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	hook := f.hook(s.hooks, secret)
	s.watch(f.url("widgets"), "--app", "docs")
	f.create("widgets", false)
	first := f.push("widgets", "main", map[string]string{"README": "first\n"})
	s.synced("docs", first)
	_, line, _ := strings.Cut(s.process.Log.String(), "event=push delivery=")
	delivery, _, _ := strings.Cut(line, " ")
	second := f.push("widgets", "main", map[string]string{"README": "second\n"})
	s.synced("docs", second)
	deliveries := strings.Count(s.process.Log.String(), "event=push")
	f.redeliver(hook, delivery)
	proctest.Eventually(t, func() bool { return strings.Count(s.process.Log.String(), "event=push") > deliveries }, "the redelivery arrives")
	third := f.push("widgets", "main", map[string]string{"README": "third\n"})
	if _, before := s.synced("docs", third); slices.ContainsFunc(before, func(r events.Result) bool { return r.After != second && r.After != third }) {
		t.Errorf("after the redelivery of the push of %s: %+v", first, before)
	}
	proctest.AssertIdle(t, s.redis.Client())
}

// TestOneWebhookOfGiteaForSSHAndHTTP watches a repository over SSH and over HTTP, under two paths.
func TestOneWebhookOfGiteaForSSHAndHTTP(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	f.hook(s.hooks, secret)
	head := f.create("both", true)
	s.write(filepath.Join(s.credentials, "key"), f.sshCredential())
	s.write(filepath.Join(s.credentials, "reads"), map[string]string{"username": owner, "password": f.token("reads", "read:repository"), "urls": f.base + "/acme/\n"})
	s.watch(f.url("both"), "--app", "docs", "--credential", "reads")
	s.watch(f.sshURL("both"), "--app", "ci", "--credential", "key", "--repo", "acme/over-ssh")
	for n := range 3 {
		seen := map[string]bool{}
		s.await("both apps receive the commit", func(r events.Result) bool {
			seen[r.App] = seen[r.App] || r.Type == events.ResultSynced && r.After == head
			return seen["docs"] && seen["ci"]
		})
		if a, b := s.read("acme/both/README"), s.read("acme/over-ssh/README"); a != b {
			t.Errorf("after push %d: %q over HTTP, %q over SSH", n, a, b)
		}
		head = f.push("both", "main", map[string]string{"README": fmt.Sprint(n, "\n")})
	}
}

// others returns the synced results of other apps than docs.
func others(results []events.Result) (of []events.Result) {
	for _, r := range results {
		if r.App != "docs" && r.Type == events.ResultSynced {
			of = append(of, r)
		}
	}
	return of
}

func TestLFSOfGitea(t *testing.T) {
	t.Parallel()
	f, s := start(t), serve(t, "", "")
	f.hook(s.hooks, secret)
	f.create("art", true)
	s.write(filepath.Join(s.credentials, "reads"), map[string]string{"username": owner, "password": f.token("reads", "read:repository"), "urls": f.base + "/acme/\n"})
	s.watch(f.url("art"), "--app", "docs", "--credential", "reads", "--lfs", "fetch")
	dir := f.clone("art", "main")
	f.git(dir, "lfs", "install", "--local")
	f.git(dir, "lfs", "track", "*.bin")
	picture := strings.Repeat("a large file\n", 1000)
	s.write(dir, map[string]string{"picture.bin": picture})
	f.git(dir, "add", "--all")
	f.git(dir, "commit", "--quiet", "--message", "a picture")
	f.git(dir, "push", "--quiet", "origin", "HEAD:main")
	s.synced("docs", f.git(dir, "rev-parse", "HEAD"))
	if got := s.read("acme/art/picture.bin"); got != picture {
		t.Errorf("picture.bin has %d bytes, %.60q; want its content", len(got), got)
	}
}
