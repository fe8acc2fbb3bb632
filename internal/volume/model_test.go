package volume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// volumeModel is what a repository of random actions must look like.
type volumeModel struct {
	*world
	random *rand.Rand
	refs   []*refModel
}

// refModel is one of its refs.
type refModel struct {
	branch, name     string // name as published
	head, published  string // commits; published is "" if it is not
	altered          bool   // and marked, but not synced since
	now, atPublished map[string]string
	editGenerator    *editGenerator
}

// TestRandomActions pushes, syncs, prepares, collects, verifies, alters and removes at random. After each action all
// unmodified trees must equal their commits, and the repository must be within its bounds.
func TestRandomActions(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &volumeModel{world: newWorld(t), random: rand.New(rand.NewPCG(seed, 1))}
	m.volume = m.open(t.TempDir(), Config{Grace: 1})
	for _, ref := range []*refModel{{branch: gitserver.Main, name: widgets}, {branch: "dev", name: widgets + "@dev"}} {
		ref.editGenerator = &editGenerator{files: map[string]string{}, rand: m.random}
		first := ref.editGenerator.next(30)
		if ref.branch == gitserver.Main {
			ref.head = m.create(first.Write)
		} else {
			ref.head = m.commit(ref.branch, gitserver.Edit{Write: first.Write, Orphan: true})
		}
		ref.now = maps.Clone(ref.editGenerator.files)
		m.refs = append(m.refs, ref)
		m.sync(ref)
	}
	actions := []struct {
		name string
		do   func(*refModel)
	}{
		{"push", m.push}, {"push", m.push}, {"sync", m.sync}, {"sync", m.sync}, {"prepare", m.prepare}, {"prepare", m.prepare},
		{"gc", func(*refModel) { m.gc(m.random.IntN(2) == 0) }}, {"verify", func(*refModel) { m.verify(false) }}, {"repair", m.repair},
		{"alter", m.alter}, {"remove", m.remove},
	}
	for range testenv.Form(12, 150) {
		ref, action := m.refs[m.random.IntN(len(m.refs))], actions[m.random.IntN(len(actions))]
		action.do(ref)
		m.check(fmt.Sprintf("%s of %s", action.name, ref.branch))
	}
	m.verify(true)
	for _, ref := range m.refs {
		m.sync(ref)
	}
	m.check("the end")
	m.mustVerify()
	m.gc(true)
	mustBeTidy(t, m.world)
}

func (m *volumeModel) push(ref *refModel) {
	ref.head = m.commit(ref.branch, ref.editGenerator.next(4))
	ref.now = maps.Clone(ref.editGenerator.files)
}

func (m *volumeModel) sync(ref *refModel) {
	res := m.world.sync(ref.branch)
	if res.After != ref.head {
		m.t.Errorf("synced %+v, want %s", res, ref.head)
	}
	if ref.altered && !res.Published {
		m.t.Errorf("the altered tree of %s is not replaced", ref.branch)
	}
	ref.altered = false
	ref.published, ref.atPublished = ref.head, ref.now
}

func (m *volumeModel) prepare(ref *refModel) {
	req := m.prepareRequest(ref.branch)
	if _, err := m.volume.Prepare(m.t.Context(), req); err != nil {
		m.t.Fatal(err)
	}
}

func (m *volumeModel) repair(*refModel) {
	m.verify(true)
	if m.isPrepared(widgets) {
		m.t.Error("a prepared tree is left after a repair")
	}
}

// alter alters a file in a way that a sync does not notice. Trees that share it are altered, too, so it has them marked at once.
func (m *volumeModel) alter(ref *refModel) {
	for path := range ref.atPublished {
		if ref.published == "" || ref.altered {
			return
		}
		if err := rewrite(m.path(ref.name, filepath.FromSlash(path))); err != nil && !os.IsNotExist(err) {
			m.t.Fatal(err)
		}
		ref.altered = true
		m.verify(true)
		return
	}
}

func (m *volumeModel) remove(ref *refModel) {
	if ref.branch == gitserver.Main {
		return
	}
	req := RemoveRequest{Repo: repoPath(m.t, widgets), Ref: testenv.Must(events.ParseRef(ref.branch))(m.t), Fence: m.fence.Add(1), Force: true}
	testenv.Must(m.volume.RemoveRef(m.t.Context(), req))(m.t)
	ref.published, ref.altered = "", false
}

// check compares what readers see with the model.
func (m *volumeModel) check(after string) {
	m.t.Helper()
	for _, ref := range m.refs {
		if isPublished := isThere(m.t, m.path(ref.name)); isPublished != (ref.published != "") {
			m.t.Fatalf("after %s: %s is published: %v", after, ref.branch, isPublished)
		}
		if ref.published == "" || ref.altered {
			continue
		}
		if got := readTree(m.t, m.path(ref.name)); !maps.Equal(got, ref.atPublished) {
			m.t.Fatalf("after %s: %s has other files than commit %.12s", after, ref.branch, ref.published)
		}
	}
	trees := testenv.Must(m.volume.folder(repoPath(m.t, widgets)).preparedTrees())(m.t)
	if len(trees) > len(m.refs)+1 { // one of a tree that was replaced goes with the next sync
		m.t.Fatalf("after %s: %d trees are prepared", after, len(trees))
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}
