package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// TestVerifyHasAlteredTreesReplaced alters a published tree in ways that a sync does not notice. Once verify has marked it, a poll has it
// replaced, as a result for each app says. No later tree has any of it.
func TestVerifyHasAlteredTreesReplaced(t *testing.T) {
	t.Parallel()
	a, apps := newAlteredWorld(t, "--poll-every", "0s"), []string{"docs", "search"}
	lockstep := func(code int, args ...string) {
		t.Helper()
		if stdout, stderr, got := proctest.RunLockstep(t, nil, append(args, "--redis", a.redis)...); got != code {
			t.Fatalf("%q: exit code %d: %s%s", args, got, stdout, stderr)
		}
	}
	for _, name := range apps {
		lockstep(term.ExitDone, "watch", "add", a.git.URL(alteredRepo), "--repo", alteredRepo, "--app", name)
	}
	proctest.Eventually(t, func() bool { return len(givenTo(a)) == len(apps)+1 }, "each app has its first result")
	for name, alter := range map[string]func(path string) error{
		"same size and time": func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(overwrite(path, slices.Repeat([]byte{'!'}, int(info.Size()))), os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
		"added": func(path string) error { return os.WriteFile(path+".added", []byte("added"), 0o600) },
	} {
		tree := proctest.Must(filepath.EvalSymlinks(a.tree))(t)
		a.last = name
		commit := strings.TrimSpace(proctest.Must(gitserver.Git(t.Context(), tree, "", "rev-parse", "HEAD"))(t))
		seen := len(a.results())
		proctest.Must(0, alter(filepath.Join(tree, alteredPath(7))))(t)
		lockstep(term.ExitFailed, "repos", "verify", alteredRepo, "--repair", "--root", a.root)
		due := proctest.Must(events.NewChange(events.Change{Type: events.ChangeDue, Repo: proctest.Must(events.ParseRepoPath(alteredRepo))(t), Source: "/test"}))(t)
		proctest.Must(0, app.PublishChange(t.Context(), a.server.Client(), events.DefaultNamespace, due))(t)
		proctest.Eventually(t, func() bool { return fullResults(a.results()[seen:], commit, apps) }, "%s: a result of %s for %v", name, commit, apps)
		if now := proctest.Must(filepath.EvalSymlinks(a.tree))(t); now == tree {
			t.Errorf("%s: the tree is still published", name)
		}
		for _, what := range differences(t, a.tree, a.clone) {
			t.Errorf("%s: %s", name, what)
		}
		for range 2 { // the first may change a tree that was prepared before
			a.push()
		}
	}
}

// results returns all results so far.
func (a *alteredWorld) results() (results []events.Result) {
	a.t.Helper()
	for _, entry := range proctest.Must(a.server.Client().XRange(a.t.Context(), events.DefaultNamespace.Results(), "-", "+").Result())(a.t) {
		results = append(results, proctest.DecodeResult(a.t, entry))
	}
	return results
}

func givenTo(a *alteredWorld) map[string]bool {
	given := map[string]bool{}
	for _, result := range a.results() {
		if result.Type == events.ResultSynced {
			given[result.App] = true
		}
	}
	return given
}

// fullResults reports whether each app has a result that lists all 60 files of a replaced tree. Apps have not received the last pushes.
func fullResults(results []events.Result, commit string, apps []string) bool {
	for _, app := range apps {
		if !slices.ContainsFunc(results, func(r events.Result) bool {
			return r.Type == events.ResultSynced && r.App == app && r.Full && (app != "" || r.Before == commit) && r.After == commit && len(r.Files) == 60
		}) {
			return false
		}
	}
	return true
}

// overwrite writes into a file's inode.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(content, 0)
	return err
}

// alteredWorld is a repository of 60 files in 12 folders, published by a service.
type alteredWorld struct {
	*mirror
	t           *testing.T
	random      *rand.Rand
	clone, tree string // tree is the published name
	pushes      int
	last        string // alteration
}

const alteredRepo = "acme/altered"

func newAlteredWorld(t *testing.T, args ...string) *alteredWorld {
	t.Helper()
	a := &alteredWorld{mirror: newMirror(t, args...), t: t, random: rand.New(rand.NewPCG(1, uint64(len(t.Name()))))}
	files := map[string]string{}
	for i := range 60 {
		files[alteredPath(i)] = fmt.Sprintf("content of file %d\n", i)
	}
	proctest.Must(a.git.Create(t.Context(), alteredRepo, files))(t)
	a.clone, a.tree = a.mirror.clone(t, alteredRepo, "HEAD"), filepath.Join(a.root, alteredRepo)
	a.push()
	return a
}

func alteredPath(i int) string { return fmt.Sprintf("d%d/e%d/f%d", i%4, i%12, i) }

// push pushes one file, and compares the new tree with git's.
func (a *alteredWorld) push() {
	a.t.Helper()
	a.pushes++
	edit := gitserver.Edit{Write: map[string]string{alteredPath(a.random.IntN(60)): fmt.Sprint("push ", a.pushes, "\n")}}
	commit := proctest.Must(a.git.Commit(a.t.Context(), alteredRepo, gitserver.Main, edit))(a.t)
	proctest.Must(gitserver.Git(a.t.Context(), a.clone, "", "fetch", "--quiet", "--depth", "1", "origin", "HEAD"))(a.t)
	resetTo(a.t, a.clone, "FETCH_HEAD")
	a.compare(a.t, alteredRepo, "", a.clone, commit)
	if a.t.Failed() {
		a.t.Fatalf("after %d pushes; the last alteration was %s", a.pushes, a.last)
	}
}
