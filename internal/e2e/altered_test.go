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
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestAlteredTreesDoNotSpread alters the published tree before each push, as a careless reader may. None of that may be in a later
// tree. The alterations come at random times after the last push, to meet each state of the work between pushes.
func TestAlteredTreesDoNotSpread(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	pushes := testenv.Soak(40, 1000)
	a := newAlteredWorld(t)
	for range pushes {
		a.alter(alterations[a.random.IntN(len(alterations))])
		a.push()
	}
}

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
	for _, with := range []alteration{
		{"same size and time", func(_ *alteredWorld, path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(overwrite(path, slices.Repeat([]byte{'!'}, int(info.Size()))), os.Chtimes(path, info.ModTime(), info.ModTime()))
		}},
		{"added", func(_ *alteredWorld, path string) error { return os.WriteFile(path+".added", []byte("added"), 0o600) }},
	} {
		tree := proctest.Must(filepath.EvalSymlinks(a.tree))(t)
		a.last = with.name
		commit := strings.TrimSpace(proctest.Must(gitserver.Git(t.Context(), tree, "", "rev-parse", "HEAD"))(t))
		seen := len(a.results())
		proctest.Must(0, with.alter(a, filepath.Join(tree, alteredPath(7))))(t)
		lockstep(term.ExitFailed, "repos", "verify", alteredRepo, "--repair", "--root", a.root)
		due := proctest.Must(events.NewChange(events.Change{Type: events.ChangeDue, Repo: proctest.Must(events.ParseRepoPath(alteredRepo))(t), Source: "/test"}))(t)
		proctest.Must(0, app.PublishChange(t.Context(), a.server.Client(), events.DefaultNamespace, due))(t)
		proctest.Eventually(t, func() bool { return fullResults(a.results()[seen:], commit, apps) }, "%s: a result of %s for %v", with.name, commit, apps)
		if now := proctest.Must(filepath.EvalSymlinks(a.tree))(t); now == tree {
			t.Errorf("%s: the tree is still published", with.name)
		}
		for _, what := range differences(t, a.tree, a.clone) {
			t.Errorf("%s: %s", with.name, what)
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

// alteration alters a file of a tree, or its folder.
type alteration struct {
	name  string
	alter func(a *alteredWorld, path string) error
}

var alterations = []alteration{
	{"overwritten", func(a *alteredWorld, path string) error {
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return overwrite(path, slices.Repeat([]byte{'!'}, len(old)))
	}},
	{"appended", func(a *alteredWorld, path string) error {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = file.WriteString("appended")
		return err
	}},
	{"truncated", func(_ *alteredWorld, path string) error { return os.Truncate(path, 0) }},
	{"executable", func(_ *alteredWorld, path string) error { return os.Chmod(path, 0o755) }},
	{"deleted", func(_ *alteredWorld, path string) error { return os.Remove(path) }},
	{"replaced", func(_ *alteredWorld, path string) error {
		return replace(path, func(next string) error { return os.WriteFile(next, []byte("replaced"), 0o600) })
	}},
	{"linked", func(_ *alteredWorld, path string) error {
		return replace(path, func(next string) error { return os.Symlink("/etc/passwd", next) })
	}},
	{"added", func(_ *alteredWorld, path string) error { return os.WriteFile(path+".added", []byte("added"), 0o600) }},
	{"folder added", func(_ *alteredWorld, path string) error { return os.MkdirAll(path+".added/folder", 0o755) }},
	{"folder deleted", func(_ *alteredWorld, path string) error { return os.RemoveAll(filepath.Dir(path)) }},
	{"folder linked", func(a *alteredWorld, path string) error {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			return err
		}
		return os.Symlink(a.outside, filepath.Dir(path))
	}},
	{"in the root", func(a *alteredWorld, path string) error {
		root := filepath.Dir(filepath.Dir(filepath.Dir(path)))
		return os.WriteFile(filepath.Join(root, filepath.Base(path)), []byte("added"), 0o600)
	}},
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

func replace(path string, make func(next string) error) error {
	if err := make(path + ".next"); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}

// alteredWorld is a repository of 60 files in 12 folders, published by a service.
type alteredWorld struct {
	*mirror
	t           *testing.T
	random      *rand.Rand
	clone, tree string // tree is the published name
	outside     string // a folder with the names of the tree's files
	pushes      int
	last        string // alteration
}

const alteredRepo = "acme/altered"

func newAlteredWorld(t *testing.T, args ...string) *alteredWorld {
	t.Helper()
	a := &alteredWorld{mirror: newMirror(t, args...), t: t, random: rand.New(rand.NewPCG(1, uint64(len(t.Name())))), outside: t.TempDir()}
	files := map[string]string{}
	for i := range 60 {
		files[alteredPath(i)] = fmt.Sprintf("content of file %d\n", i)
		proctest.Must(0, os.WriteFile(filepath.Join(a.outside, filepath.Base(alteredPath(i))), []byte("outside"), 0o600))(t)
	}
	proctest.Must(a.git.Create(t.Context(), alteredRepo, files))(t)
	a.clone, a.tree = a.mirror.clone(t, alteredRepo, "HEAD"), filepath.Join(a.root, alteredRepo)
	a.push()
	return a
}

func alteredPath(i int) string { return fmt.Sprintf("d%d/e%d/f%d", i%4, i%12, i) }

// alter alters some files of the published tree.
func (a *alteredWorld) alter(with alteration) {
	a.t.Helper()
	time.Sleep(time.Duration(a.random.IntN(40)) * time.Millisecond)
	tree := proctest.Must(filepath.EvalSymlinks(a.tree))(a.t)
	for range 1 + a.random.IntN(3) {
		path := filepath.Join(tree, alteredPath(a.random.IntN(60)))
		if _, err := os.Lstat(path); err != nil {
			continue // an earlier alteration deleted it
		}
		proctest.Must(0, with.alter(a, path))(a.t)
		a.last = fmt.Sprintf("%s: %s", path, with.name)
	}
	time.Sleep(time.Duration(a.random.IntN(40)) * time.Millisecond)
}

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
