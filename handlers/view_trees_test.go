package handlers_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/views"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// watchTrees adds a watch whose views are published as trees.
func (w *world) watchTrees(app, ref string, paths map[string][]string) watch.Watch {
	w.t.Helper()
	return w.watchAs(watch.Watch{App: app, URL: w.git.URL("acme/widgets"), Options: watch.With(views.Options{Views: viewSet(w.t, paths), Trees: true})}, ref)
}

// filesIn returns the sorted files of a tree below the root, each with its type and content.
func (w *world) filesIn(name string) []string {
	w.t.Helper()
	top, err := filepath.EvalSymlinks(filepath.Join(w.root, name))
	if err != nil {
		return []string{"not there"}
	}
	files := []string{}
	must(w.t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		file, kind := strings.TrimPrefix(path, top+"/"), "100644"
		info, err := entry.Info()
		must(w.t, err)
		var content []byte
		switch {
		case entry.Type() == fs.ModeSymlink:
			kind = "120000"
			target, err := os.Readlink(path)
			must(w.t, err)
			content = []byte(target)
		case info.Mode()&0o100 != 0:
			kind = "100755"
			fallthrough
		default:
			content, err = os.ReadFile(path)
			must(w.t, err)
		}
		files = append(files, fmt.Sprintf("%s %s %s", kind, file, content))
		return nil
	}))
	slices.Sort(files)
	return files
}

// TestViewTreesAgainstOracle pushes random changes, as TestViewsAgainstOracle does. Each name of a view must have the files of its
// commit, each result of a view must name the tree with them, and views without a result must keep theirs.
func TestViewTreesAgainstOracle(t *testing.T) {
	testenv.SkipUnderRace(t)
	random := rand.New(rand.NewPCG(testenv.Seed(t), 4))
	w := newWorld(t)
	p := &viewPusher{world: w, random: random}
	p.begin()
	views := randomViews(random, testenv.Form(40, 100))
	argo := w.watchTrees("argo", "", views)
	set := viewSet(t, views)
	o := &oracle{paths: set.Map(), has: map[string][]int{}}
	for name := range set.All() {
		o.views = append(o.views, name)
	}
	trees := map[string]string{}
	for i := range testenv.Form(8, 25) {
		if i > 0 {
			p.push(i)
		}
		if i > 0 && random.IntN(6) == 0 {
			continue // no webhook
		}
		change := testenv.Must(argo.Change("c", "/test", events.Ref{}, ""))(t)
		entry := fmt.Sprintf("%d-0", i+1)
		if random.IntN(4) == 0 {
			w.handleUnsettled(entry, change)
			p.push(i)
		}
		r := w.mustHandle(entry, change)
		want := make([][]string, len(o.views))
		for file := range strings.SplitSeq(strings.TrimSuffix(p.mustGit("ls-tree", "-r", "-z", r.After), "\x00"), "\x00") {
			meta, name, _ := strings.Cut(file, "\t")
			fields := strings.Fields(meta)
			for _, view := range o.viewsOfFile(name) {
				want[view] = append(want[view], fmt.Sprintf("%s %s %s", fields[0], name, p.mustGit("cat-file", "blob", fields[2])))
			}
		}
		for _, one := range w.more {
			trees[one.View] = one.Tree
			if one.Path != "acme/widgets@~/argo/"+one.View || !strings.Contains(one.Tree, "-"+one.Subtree) {
				t.Fatalf("push %d: the result of %s names %s, %s", i, one.View, one.Path, one.Tree)
			}
		}
		for v, name := range o.views {
			slices.Sort(want[v])
			for _, at := range []string{"acme/widgets@~/argo/" + name, trees[name]} {
				if got := w.filesIn(at); !slices.Equal(got, want[v]) {
					t.Fatalf("push %d: %s has %q, want %q", i, at, got, want[v])
				}
			}
		}
	}
}

func TestViewTreesComeAndGo(t *testing.T) {
	w := newWorld(t)
	commit := w.create(map[string]string{"api/a": "1", "web/a": "1"})
	views := map[string][]string{"api": {"api"}}
	want := func(when string, names map[string]string) {
		t.Helper()
		for name, file := range names {
			got := w.filesIn("acme/" + name)
			if file == "" {
				file = "not there"
			}
			if !slices.Equal(got, []string{file}) {
				t.Errorf("%s: %s has %q, want %q", when, name, got, file)
			}
		}
		if w.mustHandle("z-0", events.Change{Type: events.ChangeDue, Repo: w.repo()}); len(w.next) != 0 {
			t.Errorf("%s: the next poll requested %+v", when, w.next)
		}
	}
	w.watchViews("argo", "", views)
	w.due("a-0")
	want("without trees", map[string]string{"widgets@~/argo/api": ""})
	argo := w.watchTrees("argo", "", views)
	if got := w.polled("b-0"); got != "" {
		t.Errorf("turning trees on gave results: %s", got)
	}
	want("with trees", map[string]string{"widgets@~/argo/api": "100644 api/a 1"})

	flux := w.watchTrees("flux", "refs/heads/*", map[string][]string{"api": {"web"}})
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", commit))
	w.due("c-0")
	want("another app", map[string]string{
		"widgets@~/argo/api": "100644 api/a 1", "widgets@~/flux/api": "100644 web/a 1", "widgets@dev~/flux/api": "100644 web/a 1", "widgets@dev~/argo/api": "",
	})
	must(t, w.git.SetHead("acme/widgets", "dev"))
	_, err := w.git.Commit(context.Background(), "acme/widgets", "dev", gitserver.Edit{Write: map[string]string{"api/a": "dev", "web/a": "dev"}})
	must(t, err)
	w.due("d-0")
	want("another default branch", map[string]string{
		"widgets@~/argo/api": "100644 api/a dev", "widgets@~/flux/api": "100644 web/a dev", "widgets@dev~/flux/api": "100644 web/a dev",
		"widgets@main~/flux/api": "100644 web/a 1",
	})
	w.unwatch(flux)
	w.due("e-0")
	w.mustHandle("e-9", events.Change{URL: w.git.URL("acme/widgets"), App: "argo"})
	want("one app left", map[string]string{
		"widgets@~/argo/api": "100644 api/a dev", "widgets@~/flux/api": "", "widgets@dev~/flux/api": "", "widgets@main~/flux/api": "",
	})
	w.watchViews("argo", "", views)
	w.mustHandle("f-0", events.Change{URL: w.git.URL("acme/widgets"), App: "argo"})
	want("without trees again", map[string]string{"widgets@~/argo/api": ""})
	w.unwatch(argo)
}

// A view whose own tree was altered has a result that lists it whole; the others have none.
func TestAlteredViewsHaveResults(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a/f": "1", "a/g": "1", "b/f": "1"})
	argo := w.watchTrees("argo", "", map[string][]string{"a": {"a"}, "b": {"b"}})
	w.due("a-0")
	must(t, os.WriteFile(filepath.Join(w.root, "acme/widgets@~/argo/a/more"), nil, 0o644))
	volume := testenv.Must(volume.OpenVolume(w.root, volume.Config{}))(t)
	defer volume.Close()
	w.fence++
	report := testenv.Must(volume.Verify(context.Background(), verifyRequest(w)))(t)
	if report.Found != 1 || len(report.Marked) != 1 {
		t.Errorf("report %+v", report)
	}
	w.push(map[string]string{"b/f": "2"})
	change := testenv.Must(argo.Change("c", "/test", events.Ref{}, ""))(t)
	r := w.mustHandle("b-0", change)
	if got := w.told(); got != "a: added a/f, added a/g (full); b: added b/f (full)" || *r.Views != (events.ViewCounts{Changed: 2}) {
		t.Errorf("%s, %+v", got, r.Views)
	}
	if got := w.filesIn("acme/widgets@~/argo/a"); !slices.Equal(got, []string{"100644 a/f 1", "100644 a/g 1"}) {
		t.Errorf("the view has %q", got)
	}
	if w.mustHandle("c-0", change); len(w.more) != 0 {
		t.Errorf("told again: %s", w.told())
	}
}

func verifyRequest(w *world) volume.VerifyRequest {
	return volume.VerifyRequest{Repo: w.repo(), Fence: w.fence, Repair: true}
}

// A repository that moves has its trees of views at the new path after the poll that moving its watches requests, without any other.
func TestViewTreesOfAMovedRepository(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1"})
	w.watchTrees("argo", "", map[string][]string{"api": {"api"}})
	w.due("a-0")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	to := path(t, "acme/gadgets")
	must(t, w.redis.Del(context.Background(), events.DefaultNamespace.Changes()).Err())
	w.mustHandle("b-0", events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: to, URL: w.git.URL("acme/gadgets")})
	requested, err := w.redis.XRange(context.Background(), events.DefaultNamespace.Changes(), "-", "+").Result()
	must(t, err)
	if len(requested) != 1 || !strings.Contains(fmt.Sprint(requested[0].Values["payload"]), string(events.ChangeDue)) {
		t.Fatalf("requested %v, want one poll", requested)
	}
	w.mustHandle("c-0", events.Change{Type: events.ChangeDue, Repo: to})
	if len(w.next) != 1 {
		t.Fatalf("the poll requested %+v, want one sync", w.next)
	}
	w.mustHandle("d-0", w.next[0])
	if got := w.filesIn("acme/gadgets@~/argo/api"); !slices.Equal(got, []string{"100644 api/a 1"}) {
		t.Errorf("the view has %q", got)
	}
	if w.mustHandle("e-0", events.Change{Type: events.ChangeDue, Repo: to}); len(w.next) != 0 {
		t.Errorf("the next poll requested %+v", w.next)
	}
}
