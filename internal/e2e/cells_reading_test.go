package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/feed"
	"lockstep/internal/follow"
	"lockstep/internal/proctest"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestReaderOfACellServesAllCells reads repositories of two cells from the reader of one: with Git, with a follower and as a stream of
// results, before, while and after one of them moves.
func TestReaderOfACellServesAllCells(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	rig.requireToken()
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one)
	rig.startReader(one)
	rig.startWorker(two).AwaitLog("worker takes changes")
	rig.startReader(two)
	here, there := rig.create(one, "here"), rig.create(two, "there")
	commits := map[events.RepoPath]string{here: rig.push(one, here, "first"), there: rig.push(two, there, "first")}
	rig.awaitGiven(one, here, commits[here])
	rig.awaitGiven(two, there, commits[there])

	tokens := access.NewTokens(rig.client, cells.DefaultPrefix)
	_, secret, err := tokens.Create(t.Context(), "search")
	_, stranger, err2 := tokens.Create(t.Context(), "other")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	front := "http://" + one.reader
	get := func(token, path string) (int, string) {
		t.Helper()
		return getStatusAs(t, token, front+path)
	}
	lsRemote := func(token string, repo events.RepoPath) (string, error) {
		cmd := exec.Command("git", "ls-remote", front+"/git/"+repo.String()+".git", "refs/heads/main")
		cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Bearer "+token, "GIT_TERMINAL_PROMPT=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	list := func() (repos, missing []string) {
		t.Helper()
		for next := ""; ; {
			var page struct {
				Repos   []struct{ Repo, Git string } `json:"repos"`
				Next    string                       `json:"next"`
				Missing string                       `json:"missing_cell"`
			}
			_, text := get(secret, "/api/v1/repos?limit=1&after="+url.QueryEscape(next))
			if err := json.Unmarshal([]byte(text), &page); err != nil || page.Repos == nil {
				t.Fatal(err, text)
			}
			for _, r := range page.Repos {
				if repos = append(repos, r.Repo); r.Git != front+"/git/"+r.Repo+".git" {
					t.Errorf("%s has the Git URL %s", r.Repo, r.Git)
				}
			}
			if page.Missing != "" {
				missing = append(missing, page.Missing)
			}
			if next = page.Next; next == "" {
				return repos, missing
			}
		}
	}
	proctest.Eventually(t, func() bool { _, missing := list(); return len(missing) == 0 }, "the reader knows the other one")
	for repo, commit := range commits {
		if out, err := lsRemote(secret, repo); err != nil || !strings.HasPrefix(out, commit) {
			t.Errorf("git ls-remote %s: %v\n%s", repo, err, out)
		}
		if out, err := lsRemote(stranger, repo); err == nil || !strings.Contains(out, "not found") {
			t.Errorf("git ls-remote %s with the token of another app: %v\n%s", repo, err, out)
		}
	}
	if repos, missing := list(); len(missing) > 0 || !slices.Equal(repos, []string{here.String(), there.String()}) {
		t.Errorf("the list has %v, without cells %v", repos, missing)
	}

	node := (&origin{T: t, url: front, token: secret}).follow()
	for repo, commit := range commits {
		node.await(repo.String(), commit)
	}
	results := proctest.Must(proctest.Must(follow.NewReader(front, node.tokenFile))(t).Results(t.Context(), ""))(t)
	defer results.Close()

	before := commits[there]
	rig.request(there, two, one)
	var last string
	for _, content := range []string{"second", "third", "fourth"} {
		last = rig.push(two, there, content)
	}
	rig.awaitMoved(there, one)
	rig.awaitGiven(one, there, last)
	last = rig.push(one, there, "fifth")
	end := time.AfterFunc(2*time.Minute, results.Close)
	defer end.Stop()
	for before != last { // the stream has a chain without a hole
		frame := proctest.Must(results.Next())(t)
		if frame.Data == nil {
			continue
		}
		result := proctest.Must(events.ParseResult(frame.Data))(t)
		if result.Type != events.ResultSynced || !result.Repo.Equal(there) || result.Unchanged() {
			continue
		}
		if result.Before != before {
			t.Fatalf("the stream has %.12s to %.12s after %.12s", result.Before, result.After, before)
		}
		before = result.After
	}
	node.await(there.String(), last)
	if out, err := lsRemote(secret, there); err != nil || !strings.HasPrefix(out, last) {
		t.Errorf("git ls-remote after the move: %v\n%s", err, out)
	}
	for _, cell := range []*cellUnderTest{one, two} {
		followers := feed.NewFollowers(rig.client, cell.name, cell.namespace, cells.DefaultPrefix)
		proctest.Eventually(t, func() bool {
			all, err := followers.List(t.Context())
			return err == nil && len(all) == 1 && all[0].App == "search" && all[0].State == feed.FollowerOK && all[0].Entry != ""
		}, "cell %s lists the follower", cell.name)
	}
	node.process.Kill()
}

// TestRepositoryIsServedWhileItMoves kills the process that moves a repository when the directory has changed and the new cell does not have it
// yet: the readers of both cells serve and list it, from the old one. That goes on until the remote answers and the new cell has fetched it.
func TestRepositoryIsServedWhileItMoves(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	rig := startCells(t, "eu-1", "eu-2")
	rig.requireToken()
	one, two := rig.cells["eu-1"], rig.cells["eu-2"]
	rig.startWorker(one).AwaitLog("worker takes changes")
	rig.startWorker(two).AwaitLog("worker takes changes")
	rig.startReader(one)
	rig.startReader(two)
	repo := rig.create(one, "moves")
	commit := rig.push(one, repo, "first")
	rig.awaitGiven(one, repo, commit)
	_, secret, err := access.NewTokens(rig.client, cells.DefaultPrefix).Create(t.Context(), "search")
	if err != nil {
		t.Fatal(err)
	}
	served := func(reader, path string) bool {
		status, text := getStatusAs(t, secret, "http://"+reader+path)
		return status == http.StatusOK && strings.Contains(text, commit)
	}
	check := func(when, list string) {
		t.Helper()
		for _, reader := range []string{one.reader, two.reader} {
			for _, path := range []string{"/api/v1/repos/" + repo.String() + "/refs", "/git/" + repo.String() + ".git/info/refs?service=git-upload-pack", list} {
				if !served(reader, path) {
					t.Errorf("%s: %s has no %s", when, path, repo)
				}
			}
		}
	}
	proctest.Eventually(t, func() bool { return served(two.reader, "/api/v1/repos/"+repo.String()+"/refs") }, "the readers know each other")
	check("before", "/api/v1/repos?after=eu-1:")
	rig.git.Answer(repo.String(), http.StatusServiceUnavailable)
	rig.dieMoving(repo, one, two, "flipped")
	time.Sleep(1500 * time.Millisecond) // the copies of the directory are a second old at most
	check("while it moves", "/api/v1/repos?after=eu-1:")
	rig.awaitMoved(repo, two)
	proctest.Eventually(t, func() bool {
		known, err := two.states.Load(t.Context(), repo)
		failing, _ := known.Failing()
		return err == nil && len(failing) > 0
	}, "the new cell cannot fetch it")
	time.Sleep(3 * time.Second) // longer than the old names stay once they may go
	check("before it is fetched", "/api/v1/repos?after=eu-1:")
	stop := rig.request(repo, two, one)
	rig.awaitFailure(repo, "has not fetched") // it is not moved on before that
	check("while it is to move back", "/api/v1/repos?after=eu-1:")
	stop()
	rig.moving.Wait()
	registry := watch.NewRegistry(rig.client, two.namespace)
	set := proctest.Must(registry.Of(t.Context(), repo))(t)
	for _, w := range set.Watches { // who may read it is decided in its present cell
		proctest.Must(registry.Remove(t.Context(), w.Key()))(t)
	}
	for _, path := range []string{"/api/v1/repos/" + repo.String() + "/refs", "/api/v1/repos?after=eu-1:"} {
		if served(one.reader, path) || served(two.reader, path) {
			t.Errorf("without a watch: %s has %s", path, repo)
		}
	}
	proctest.Must(registry.Put(t.Context(), set.Watches...))(t)
	rig.git.Answer(repo.String(), 0)
	rig.assertCleanedUp(one, map[string]events.RepoPath{"moves": repo})
	check("after", "/api/v1/repos?after=eu-2:")
}
