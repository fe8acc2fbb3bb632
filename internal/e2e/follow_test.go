package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
	"lockstep/tree"
)

// origin is a deployment with a worker and a reader, which followers follow.
type origin struct {
	*testing.T
	git           *gitserver.Server
	redis         *redistest.Server
	client        redis.UniversalClient
	root, token   string
	tokenID       string
	url           string
	worker        *proctest.Process
	reader        *proctest.Process
	readerAddress string
	contents      sync.Map // content of the file a by commit
}

func startOrigin(t *testing.T, repos ...string) *origin {
	t.Helper()
	o := &origin{T: t, git: proctest.StartGit(t), redis: redistest.Start(t), root: t.TempDir()}
	o.client = o.redis.Client()
	token, secret, err := access.NewTokens(o.client, events.DefaultNamespace).Create(t.Context(), "search")
	if err != nil {
		t.Fatal(err)
	}
	o.token, o.tokenID = secret, token.ID
	o.startWorker()
	o.readerAddress = proctest.FreeAddress(t)
	o.startReader()
	o.url = "http://" + o.readerAddress
	for _, repo := range repos {
		proctest.Must(o.git.Create(t.Context(), repo, map[string]string{"README": repo, "a": "0"}))(t)
		o.watch(repo, "")
		o.push(repo, "first")
	}
	return o
}

func (o *origin) startWorker() {
	o.worker = proctest.Start(o.T, "serve", "--redis", o.redis.URL(), "--root", o.root, "--roles", "worker", "--lease", "2s")
}

func (o *origin) startReader() {
	o.reader = proctest.Start(o.T, "serve", "--redis", o.redis.URL(), "--root", o.root, "--roles", "reader", "--listen", o.readerAddress)
	o.reader.AwaitLog("listening")
}

func (o *origin) watch(repo, ref string) { o.Helper(); o.watchAs("search", repo, ref) }

func (o *origin) watchAs(app, repo, ref string) {
	o.Helper()
	selector := proctest.Must(watch.ParseSelector(ref))(o.T)
	w := proctest.Must(watch.New(watch.Watch{App: app, URL: o.git.URL(repo), Ref: selector, Poll: watch.Never}))(o.T)
	proctest.Must(watch.NewRegistry(o.client, events.DefaultNamespace).Put(context.Background(), w))(o.T)
}

// push commits to a repository and returns the commit once the reader serves it.
func (o *origin) push(repo, content string) string {
	o.Helper()
	return o.pushDuring(repo, content, func() {})
}

// pushDuring calls during while the worker may be at work on the push.
func (o *origin) pushDuring(repo, content string, during func()) string {
	o.Helper()
	commit := proctest.Must(o.git.Commit(o.Context(), repo, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": content}}))(o.T)
	o.contents.Store(commit, content)
	o.request(events.Change{URL: o.git.URL(repo), After: commit})
	during()
	o.awaitSettled(repo, commit)
	return commit
}

// awaitSettled waits until a commit of main is settled for the app, so that the reader serves it.
func (o *origin) awaitSettled(repo, commit string) {
	o.Helper()
	states := state.NewStore(o.client, events.DefaultNamespace)
	proctest.Eventually(o.T, func() bool {
		known, err := states.Load(o.Context(), proctest.Must(events.ParseRepoPath(repo))(o.T))
		return err == nil && known.Given("search", proctest.Must(events.ParseRef("main"))(o.T)) == commit
	}, "%s is published at %.12s", repo, commit)
}

func (o *origin) request(change events.Change) { o.Helper(); o.requestAs("search", change) }

func (o *origin) requestAs(name string, change events.Change) {
	o.Helper()
	change.ID, change.Source, change.App = uuid.NewString(), "/test", name
	change = proctest.Must(events.NewChange(change))(o.T)
	proctest.Must(0, app.PublishChange(context.Background(), o.client, events.DefaultNamespace, change))(o.T)
}

// node is another machine with copies.
type node struct {
	*origin
	root, tokenFile string
	args            []string
	process         *proctest.Process
}

func (o *origin) follow(args ...string) *node {
	o.Helper()
	dir := o.TempDir()
	f := &node{origin: o, root: filepath.Join(dir, "root"), tokenFile: filepath.Join(dir, "token"), args: args}
	proctest.Must(0, os.WriteFile(f.tokenFile, []byte(o.token+"\n"), 0o600))(o.T)
	f.start()
	return f
}

func (f *node) start() {
	f.process = proctest.Start(f.T, append([]string{"follow", f.url, "--root", f.root, "--token-file", f.tokenFile, "--lease", "1s"}, f.args...)...)
}

// at returns the commit that is published under a name, and "" if none is.
func (f *node) at(name string) string {
	opened, err := tree.Open(f.root, name)
	if err != nil {
		return ""
	}
	defer opened.Close()
	return opened.Commit()
}

func (f *node) await(name, commit string) {
	f.Helper()
	proctest.Eventually(f.T, func() bool { return f.at(name) == commit }, "%s is at %.12q, not at %s", name, commit, f.at(name))
}

// assertSame checks that a name has the same files as at the origin.
func (f *node) assertSame(name string) {
	f.Helper()
	got, want := filesOf(f.T, filepath.Join(f.root, name)), filesOf(f.T, filepath.Join(f.origin.root, name))
	if fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 {
		f.Errorf("%s has the files\n%v, want\n%v", name, got, want)
	}
}

// filesOf returns the files of a published tree with their content.
func filesOf(t *testing.T, name string) map[string]string {
	t.Helper()
	dir := proctest.Must(filepath.EvalSymlinks(name))(t)
	files := map[string]string{}
	proctest.Must(0, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() == ".git" {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if entry.Type().IsRegular() {
			files[strings.TrimPrefix(path, dir)] = string(proctest.Must(os.ReadFile(path))(t))
		}
		return nil
	}))(t)
	return files
}

// TestFollower keeps copies on another node through pushes, crashes of every process, new refs, removals and moves.
func TestFollower(t *testing.T) {
	t.Parallel()
	o := startOrigin(t, "acme/widgets", "acme/gadgets", "other/tools")
	all, some := o.follow(), o.follow("--repo", "acme/*")
	for _, f := range []*node{all, some} {
		f.process.AwaitLog("caught up with the reader")
		f.assertSame("acme/widgets")
		f.assertSame("acme/gadgets")
	}
	if all.assertSame("other/tools"); some.at("other/tools") != "" {
		t.Error("a repository that --repo does not select was copied")
	}

	for n := range 4 { // killed at any time, they resume
		commit := o.push("acme/widgets", fmt.Sprint("push ", n))
		switch n {
		case 1:
			all.process.Kill()
		case 2:
			all.start()
			o.reader.Kill()
			o.startReader()
		}
		if n != 1 {
			all.await("acme/widgets", commit)
		}
		some.await("acme/widgets", commit)
	}
	all.assertSame("acme/widgets")

	o.watch("acme/widgets", "refs/heads/v*")
	proctest.Must(0, o.git.SetRef(t.Context(), "acme/widgets", "refs/heads/v1", o.git.Head("acme/widgets", "refs/heads/main")))(t)
	o.request(events.Change{URL: o.git.URL("acme/widgets"), Ref: proctest.Must(events.ParseRef("v1"))(t)})
	all.await("acme/widgets@v1", o.git.Head("acme/widgets", "refs/heads/v1"))
	proctest.Must(0, o.git.DeleteRef(t.Context(), "acme/widgets", "refs/heads/v1"))(t)
	o.request(events.Change{Type: events.ChangeRemoved, URL: o.git.URL("acme/widgets"), Ref: proctest.Must(events.ParseRef("v1"))(t)})
	all.await("acme/widgets@v1", "")

	head := o.git.Head("acme/gadgets", "refs/heads/main")
	proctest.Must(0, o.git.Rename("acme/gadgets", "acme/moved"))(t)
	o.request(events.Change{Type: events.ChangeMoved, Repo: proctest.Must(events.ParseRepoPath("acme/gadgets"))(t),
		To: proctest.Must(events.ParseRepoPath("acme/moved"))(t), URL: o.git.URL("acme/moved")})
	all.await("acme/moved", head)
	all.assertSame("acme/moved")
	all.process.AwaitLog("outcome=moved") // it is not fetched anew

	proctest.Must(0, o.git.Delete("other/tools"))(t)
	o.request(events.Change{Type: events.ChangeRemoved, URL: o.git.URL("other/tools")})
	all.await("other/tools", "")
	if code := all.process.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// TestFollowerWhoseTokenIsRemoved stops, and keeps or deletes its copies; a replaced token goes on.
func TestFollowerWhoseTokenIsRemoved(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	o := startOrigin(t, "acme/widgets")
	keeps, wipes, rotates := o.follow("--token-wait", "1s"), o.follow("--token-wait", "1s", "--wipe-on-revoke"), o.follow()
	for _, f := range []*node{keeps, wipes, rotates} {
		f.await("acme/widgets", o.git.Head("acme/widgets", "refs/heads/main"))
		f.process.AwaitLog("caught up with the reader")
	}
	pinned := proctest.Must(tree.Open(wipes.root, "acme/widgets"))(t)
	tokens := access.NewTokens(o.client, events.DefaultNamespace)
	_, secret, err := tokens.Create(t.Context(), "search")
	if err != nil {
		t.Fatal(err)
	}
	proctest.Must(tokens.Remove(t.Context(), o.tokenID))(t)
	rotates.process.AwaitLog("fetching nothing until it accepts it")
	proctest.Must(0, os.WriteFile(rotates.tokenFile, []byte(secret), 0o600))(t)
	if code := keeps.process.AwaitExit(time.Minute); code != term.ExitRevoked {
		t.Errorf("exit code %d, want %d", code, term.ExitRevoked)
	}
	if keeps.at("acme/widgets") == "" || !strings.Contains(keeps.process.Log.String(), "the copies stay") {
		t.Error("the copies of a follower without --wipe-on-revoke are gone, or it does not say that they stay")
	}
	wipes.await("acme/widgets", "")
	if _, err := os.Stat(filepath.Join(pinned.Dir(), "README")); err != nil {
		t.Errorf("the pinned tree is gone: %v", err)
	}
	proctest.Must(0, pinned.Close())(t)
	if code := wipes.process.AwaitExit(time.Minute); code != term.ExitRevoked {
		t.Errorf("exit code %d, want %d", code, term.ExitRevoked)
	}
	if _, err := os.Stat(pinned.Dir()); err == nil {
		t.Error("the pinned tree is still there once it is unpinned")
	}
	rotates.await("acme/widgets", o.push("acme/widgets", "with the new token"))
}

// TestFollowerOfAFollower follows a follower that serves its copies, with its API token, also after that one was restarted.
func TestFollowerOfAFollower(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	o := startOrigin(t, "acme/widgets")
	file, address := filepath.Join(t.TempDir(), "api-token"), proctest.FreeAddress(t)
	proctest.Must(0, os.WriteFile(file, []byte("an-api-token-of-32-characters-xx"), 0o600))(t)
	first := o.follow("--reader", "--listen", address, "--api-token-file", file)
	first.process.AwaitLog("caught up with the reader")
	second := &node{origin: o, root: filepath.Join(t.TempDir(), "root"), tokenFile: file}
	second.process = proctest.Start(t, "follow", "http://"+address, "--root", second.root, "--token-file", file)
	second.await("acme/widgets", o.git.Head("acme/widgets", "refs/heads/main"))
	second.await("acme/widgets", o.push("acme/widgets", "second"))
	first.process.Kill()
	first.start()
	second.await("acme/widgets", o.push("acme/widgets", "third"))
	second.assertSame("acme/widgets")
}
