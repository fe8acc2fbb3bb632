package handlers_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/wildmatch"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// oracle knows by brute force what each view has received.
type oracle struct {
	views    []string
	paths    map[string][]string // of each view
	has      map[string][]int    // views that have a file, by its path
	received []uint64            // sum over the files of each view that it last received
	subtrees []string            // likewise, its subtree
}

// viewsOfFile returns the views that have a file, one by one.
func (o *oracle) viewsOfFile(file string) []int {
	if has, known := o.has[file]; known {
		return has
	}
	var m wildmatch.Matcher
	has := []int{}
	for i, name := range o.views {
		if slices.ContainsFunc(o.paths[name], func(path string) bool {
			for at := file; ; at = at[:strings.LastIndexByte(at, '/')] {
				if m.Match(path, at) {
					return true
				}
				if !strings.Contains(at, "/") {
					return false
				}
			}
		}) {
			has = append(has, i)
		}
	}
	o.has[file] = has
	return has
}

// sums returns a sum over the files of each view in a commit.
func (o *oracle) sums(listing string) []uint64 {
	sums := make([]uint64, len(o.views))
	for entry := range strings.SplitSeq(strings.TrimSuffix(listing, "\x00"), "\x00") {
		_, file, _ := strings.Cut(entry, "\t")
		sum := sha256.Sum256([]byte(entry))
		for _, i := range o.viewsOfFile(file) {
			sums[i] += binary.LittleEndian.Uint64(sum[:]) | 1
		}
	}
	return sums
}

// randomViews returns views of folders, files and patterns, some of which overlap or select nothing.
func randomViews(random *rand.Rand, n int) map[string][]string {
	views := map[string][]string{}
	for i := range n {
		var paths []string
		for range 1 + random.IntN(3) {
			team, svc := random.IntN(12), random.IntN(12)
			paths = append(paths, []string{
				fmt.Sprintf("t%d/s%d", team, svc), fmt.Sprintf("t%d/s%d/f%d", team, svc, random.IntN(8)), fmt.Sprintf("t%d/s%d/", team, svc),
				fmt.Sprintf("t%d/*/f%d", team, random.IntN(8)), fmt.Sprintf("**/x%d-%d", team, svc), fmt.Sprintf("t%d/**/f%d", team, random.IntN(8)),
				fmt.Sprintf("none/%d", i), fmt.Sprintf("t%d/[s]%d", team, svc),
			}[random.IntN(8)])
		}
		views[fmt.Sprintf("v%05d", i)] = paths
	}
	return views
}

// TestViewsAgainstOracle pushes random changes: edits, renames of files and folders, files that become folders, force pushes, and
// moves of the branch, some without a webhook or in a worker that dies before settling. Each view must have a result if and only if
// its files differ from those that it received last.
func TestViewsAgainstOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(testenv.Seed(t), 3))
	w := newWorld(t)
	var took []time.Duration // by the syncs
	p := &viewPusher{world: w, random: random}
	p.begin()
	count, pushes := testenv.Form(200, 1000), testenv.Form(10, 30)
	if testenv.Soaking() { // ten minutes on a loaded machine
		count, pushes = 10_000, 1000
	}
	views := randomViews(random, count)
	argo := w.watchViews("argo", "", views)
	set := viewSet(t, views)
	o := &oracle{views: slices.Sorted(maps.Keys(set.Map())), paths: set.Map(), has: map[string][]int{}}
	o.received, o.subtrees = make([]uint64, len(o.views)), make([]string, len(o.views))
	missed, needless, woken := 0, 0, 0
	for i := range pushes {
		if i > 0 {
			p.push(i)
		}
		if i > 0 && random.IntN(6) == 0 {
			continue // no webhook
		}
		change := testenv.Must(argo.Change("c", "/test", events.Ref{}, ""))(t)
		entry := fmt.Sprintf("%d-0", i+1)
		if random.IntN(8) == 0 {
			w.handleUnsettled(entry, change)
		}
		began := time.Now()
		r := w.mustHandle(entry, change)
		took = append(took, time.Since(began))
		sums := o.sums(p.mustGit("ls-tree", "-r", "-z", r.After))
		got := map[string]string{}
		for _, one := range w.more {
			got[one.View] = one.Subtree
		}
		for v, name := range o.views {
			subtree, told := got[name]
			switch differs := i == 0 || sums[v] != o.received[v]; {
			case differs && !told:
				missed++
			case !differs && told:
				needless++
			case told && subtree == o.subtrees[v]:
				t.Errorf("push %d: the subtree of %s is %s again", i, name, subtree)
			}
			if told {
				o.subtrees[v] = subtree
			}
		}
		if r.Views == nil || r.Views.Changed != len(got) || r.Views.Changed+r.Views.Unchanged != len(o.views) {
			t.Errorf("push %d: counted %+v, with %d results", i, r.Views, len(got))
		}
		woken += len(got)
		if o.received = sums; missed+needless > 0 {
			t.Fatalf("push %d: %d missed, %d needless", i, missed, needless)
		}
	}
	first, later := took[0], took[1:]
	slices.Sort(later)
	t.Logf("%d views, %d results; the first sync took %v, the median of the others %v, p99 %v", len(o.views), woken, first,
		later[len(later)/2], later[len(later)*99/100])
}

// viewPusher pushes random changes to acme/widgets.
type viewPusher struct {
	*world
	random  *rand.Rand
	history []string
}

func (p *viewPusher) mustGit(args ...string) string {
	p.t.Helper()
	out := testenv.Must(p.git.Git(context.Background(), "acme/widgets", "", args...))(p.t)
	return out
}

func (p *viewPusher) path() string {
	folder := fmt.Sprintf("t%d/s%d", p.random.IntN(12), p.random.IntN(12))
	switch p.random.IntN(8) {
	case 0:
		return fmt.Sprintf("%s/deep/x%d-%d", folder, p.random.IntN(12), p.random.IntN(12))
	case 1:
		return folder // a file in place of a folder
	case 2:
		return fmt.Sprintf("none/%d", p.random.IntN(200))
	}
	return fmt.Sprintf("%s/f%d", folder, p.random.IntN(8))
}

func (p *viewPusher) begin() {
	p.t.Helper()
	files := map[string]string{"README": "1"}
	for range 300 {
		files[fmt.Sprintf("t%d/s%d/f%d", p.random.IntN(12), p.random.IntN(12), p.random.IntN(8))] = fmt.Sprint(p.random.IntN(5))
	}
	p.history = []string{p.create(files)}
}

// push makes a random push.
func (p *viewPusher) push(i int) {
	p.t.Helper()
	ctx := context.Background()
	last := p.history[len(p.history)-1]
	edit := gitserver.Edit{Parent: last, Write: map[string]string{}, Exec: map[string]string{}, Link: map[string]string{}}
	switch p.random.IntN(10) {
	case 0: // the branch moves to another commit
		commit := p.history[p.random.IntN(len(p.history))]
		must(p.t, p.git.SetRef(ctx, "acme/widgets", "refs/heads/"+gitserver.Main, commit))
		p.history = append(p.history, commit)
		return
	case 1: // force push
		edit.Parent = p.history[p.random.IntN(len(p.history))]
	}
	for range 1 + p.random.IntN(4) {
		path := p.path()
		switch p.random.IntN(8) {
		case 0:
			edit.Delete = append(edit.Delete, path)
		case 1: // a folder is renamed
			from, to := fmt.Sprintf("t%d/s%d", p.random.IntN(12), p.random.IntN(12)), fmt.Sprintf("t%d/s%d", p.random.IntN(12), p.random.IntN(12))
			for name := range strings.SplitSeq(p.mustGit("ls-tree", "-r", "-z", "--name-only", edit.Parent, from+"/"), "\x00") {
				if base, ok := strings.CutPrefix(name, from+"/"); ok {
					edit.Write[to+"/"+base] = p.mustGit("cat-file", "blob", edit.Parent+":"+name)
				}
			}
			edit.Delete = append(edit.Delete, from, to)
		case 2:
			edit.Exec[path] = fmt.Sprint(p.random.IntN(5))
		case 3:
			edit.Link[path] = "README"
		default:
			edit.Write[path] = fmt.Sprint(p.random.IntN(5)) // often the content that another file has or had
		}
	}
	commit, err := p.git.Commit(ctx, "acme/widgets", gitserver.Main, edit)
	must(p.t, err)
	p.history = append(p.history, commit)
}
