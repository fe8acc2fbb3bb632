package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/gitclients"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// gitReader is an origin with a repository whose history is kept in full, and clones of it.
type gitReader struct {
	*origin
	clones   []*clone
	follower *node // with a history of one commit; nil unless soaking
}

// clone is a bare clone of what the reader serves.
type clone struct {
	name, dir string
	shallow   bool // it has the history of one commit
	fetch     func() (main string, err error)
}

// TestGitClientsOfAReader fetches each of many commits from a reader, while workers are killed, half of them at work, and the reader
// too, while clients fetch: a client then has the forge's history, byte for byte. In the soak tests, without the race detector, clients
// other than Git fetch each commit, too, and so does a follower that keeps a history of one commit.
func TestGitClientsOfAReader(t *testing.T) {
	t.Parallel()
	g := &gitReader{origin: startOrigin(t)}
	first := proctest.Must(g.git.Create(t.Context(), "acme/widgets", map[string]string{"a": "0"}))(t)
	watched := proctest.Must(watch.New(watch.Watch{App: "search", URL: g.git.URL("acme/widgets"), Depth: events.DepthFull, Poll: watch.Never}))(t)
	proctest.Must(watch.NewRegistry(g.client, events.DefaultNamespace).Put(t.Context(), watched))(t)
	g.sync(first, false)
	g.addGit("v2", false, "-c", "protocol.version=2")
	g.addGit("v0", false, "-c", "protocol.version=0")
	g.addGit("depth 1", true)
	commits := testenv.Form(6, 20)
	if testenv.Soaking() && !testenv.UnderRace() {
		commits = 1000
		g.addOthers()
	}
	began, last := time.Now(), first
	for n := range commits {
		last = proctest.Must(g.git.Commit(t.Context(), "acme/widgets", gitserver.Main,
			gitserver.Edit{Write: map[string]string{"a": fmt.Sprint(n), fmt.Sprintf("d%d/f", n%7): strings.Repeat(fmt.Sprintln(n), n%50)}}))(t)
		if n%10 == 8 {
			g.worker.Kill()
			g.startWorker()
		}
		g.sync(last, n%10 == 3)
		g.fetch(last, n%4 == 2)
		if n%100 == 99 {
			t.Logf("%d commits after %v", n+1, time.Since(began))
		}
	}
	g.compare(last)
}

// compare compares the clones with the forge's repository.
func (g *gitReader) compare(last string) {
	g.Helper()
	want := map[bool][]string{
		false: objectsOf(g.T, g.git.Dir("acme/widgets"), last),
		true:  objectsOf(g.T, g.git.Dir("acme/widgets"), "--max-count=1", last),
	}
	for _, c := range g.clones {
		gitIn(g.T, c.dir, "fsck", "--full", "--strict")
		if got := objectsOf(g.T, c.dir, last); !slices.Equal(got, want[c.shallow]) {
			g.Errorf("%s: %d objects, the forge has %d", c.name, len(got), len(want[c.shallow]))
		}
	}
	if f := g.follower; f != nil {
		f.assertSame("acme/widgets")
		dir := filepath.Join(f.root, "acme/widgets")
		gitIn(g.T, dir, "fsck", "--full", "--strict")
		if got := objectsOf(g.T, dir, "HEAD"); !slices.Equal(got, want[true]) {
			g.Errorf("follower: %d objects, the forge has %d", len(got), len(want[true]))
		}
	}
}

// objectsOf lists the objects of commits, and of their history as far as it is there.
func objectsOf(t *testing.T, dir string, commits ...string) []string {
	t.Helper()
	return slices.Sorted(strings.Lines(gitIn(t, dir, append([]string{"rev-list", "--objects"}, commits...)...) + "\n"))
}

// repoURL returns the repository's URL, with the token of the app.
func (g *gitReader) repoURL() string {
	return "http://any:" + g.token + "@" + g.readerAddress + "/git/acme/widgets.git"
}

// addGit clones with stock Git.
func (g *gitReader) addGit(name string, shallow bool, options ...string) {
	g.Helper()
	dir := filepath.Join(g.TempDir(), "clone")
	options = append(options, "-c", "maintenance.auto=false")
	var depth []string
	if shallow {
		depth = []string{"--depth=1"}
	}
	proctest.Must(gitserver.Git(g.Context(), "/", "", slices.Concat(options, []string{"clone", "-q", "--bare"}, depth, []string{g.repoURL(), dir})...))(g.T)
	args := slices.Concat(options, []string{"fetch", "-q", g.repoURL(), "+refs/heads/*:refs/heads/*"}, depth)
	g.clones = append(g.clones, &clone{name, dir, shallow, func() (string, error) {
		if _, err := gitserver.Git(g.Context(), dir, "", args...); err != nil {
			return "", err
		}
		main, err := os.ReadFile(filepath.Join(dir, "refs/heads/main")) // of a bare clone, after a fetch
		return strings.TrimSpace(string(main)), err
	}})
}

// addOthers clones with other clients, and starts a follower.
func (g *gitReader) addOthers() {
	g.Helper()
	g.Log(gitIn(g.T, "/", "version"))
	for _, name := range gitclients.Names {
		dir := filepath.Join(g.TempDir(), "clone")
		client := gitclients.Start(g.T, name, dir)
		g.Log(client.Version)
		proctest.Must(client.Fetch(g.repoURL()))(g.T)
		g.clones = append(g.clones, &clone{name, dir, false, func() (string, error) { return client.Fetch(g.repoURL()) }})
	}
	g.follower = g.follow("--depth", "1")
}

// sync requests a sync for the app, and waits until the reader lists the commit. It can kill the worker meanwhile.
func (g *gitReader) sync(commit string, kill bool) {
	g.Helper()
	g.request(events.Change{URL: g.git.URL("acme/widgets"), Depth: events.DepthFull})
	if kill {
		g.worker.Kill()
		g.startWorker()
	}
	g.awaitSettled("acme/widgets", commit)
}

// fetch fetches with all clients at a time, which must then have the commit. It can kill the reader meanwhile.
func (g *gitReader) fetch(commit string, kill bool) {
	g.Helper()
	started := make(chan struct{})
	var fetching sync.WaitGroup
	for _, c := range g.clones {
		fetching.Go(func() {
			main, err := c.fetch()
			if err != nil && kill {
				<-started
				main, err = c.fetch()
			}
			for range 5 { // a busy machine: Redis has not answered in time
				if err == nil || !strings.Contains(err.Error(), "503") {
					break
				}
				g.Logf("%s: %v", c.name, err)
				main, err = c.fetch()
			}
			if err != nil || main != commit {
				g.Errorf("%s is at %s, want %s: %v", c.name, main, commit, err)
			}
		})
	}
	if kill {
		g.reader.Kill()
		g.startReader()
	}
	close(started)
	fetching.Wait()
	if g.follower != nil {
		g.follower.await("acme/widgets", commit)
	}
}
