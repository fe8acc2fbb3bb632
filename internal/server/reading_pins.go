package server

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/git/object"
	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// maxPinned is the number of trees that a fetch keeps open. If it wants more refs, it locks their stores, which then cannot be pruned.
const maxPinned = 16

// pins are the trees and stores that a fetch keeps in place.
type pins struct {
	*gitserve.Pinned
	volume  *volume.Volume
	former  map[events.Ref][]volume.Former
	trees   []*tree.Tree
	objects []*os.File // locks of stores
	locked  []string   // their folders
}

func (p *pins) close() {
	for _, t := range p.trees {
		_ = t.Close()
	}
	for _, file := range p.objects {
		_ = file.Close()
	}
}

// add adds what Reader.Open returned.
func (p *pins) add(ctx context.Context, t *tree.Tree, err error) error {
	if err != nil {
		return err
	}
	stored, err := p.volume.StoreOf(t.Dir())
	if err == nil {
		err = p.keep(ctx, t, stored.Dir)
	}
	if err != nil {
		_ = t.Close()
		return err
	}
	p.Shallow = append(p.Shallow, stored.Shallow...)
	if len(stored.Shallow) > 0 {
		p.Depth = max(p.Depth, int(max(stored.Depth, 1)))
	}
	for _, before := range p.former[t.Ref()] {
		if before.Fence <= volume.FenceOf(t.Dir()) { // newer commits are not settled for the app
			p.Former = append(p.Former, object.ParseID(before.Commit))
		}
	}
	return nil
}

// keep keeps the objects of a tree: by the tree, or by the lock of its store, of which another tree is open.
func (p *pins) keep(ctx context.Context, t *tree.Tree, store string) error {
	switch {
	case !slices.Contains(p.Dirs, store):
		p.Dirs = append(p.Dirs, store)
	case len(p.trees) < maxPinned:
	default:
		if !slices.Contains(p.locked, store) {
			file, err := volume.PinObjects(ctx, t.Dir())
			if err != nil {
				return err
			}
			p.objects, p.locked = append(p.objects, file), append(p.locked, store)
		}
		return t.Close()
	}
	p.trees = append(p.trees, t)
	return nil
}

// listed remembers, for some minutes, the commits of refs that were listed to each sender: a ref may move between a client's
// list and its fetch. The zero value is ready to use.
type listed struct {
	mu          sync.Mutex
	now, before map[listing]events.Ref
	began       time.Time // of now
}

type listing struct {
	app, repo string
	commit    object.ID
}

const (
	listedFor = 3 * time.Minute // at least, and at most twice as long
	maxListed = 50_000          // commits; if more are listed, they are forgotten sooner
)

func (l *listed) add(who access.Identity, visible access.Visible) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil || time.Since(l.began) > listedFor || len(l.now) > maxListed {
		l.before, l.now, l.began = l.now, map[listing]events.Ref{}, time.Now()
	}
	repo := visible.Repo.Key()
	for _, one := range visible.Refs {
		l.now[listing{who.App, repo, object.ParseID(one.Commit)}] = one.Ref
	}
}

// find returns the ref that was listed to a sender at a commit, if the ref is still visible to it.
func (l *listed) find(who access.Identity, visible access.Visible, commit object.ID) (access.Ref, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := listing{who.App, visible.Repo.Key(), commit}
	ref, ok := l.now[key]
	if !ok {
		ref, ok = l.before[key]
	}
	if !ok {
		return access.Ref{}, false
	}
	i, ok := slices.BinarySearchFunc(visible.Refs, ref.String(), func(one access.Ref, name string) int { return strings.Compare(one.Ref.String(), name) })
	if !ok {
		return access.Ref{}, false
	}
	found := visible.Refs[i]
	found.Commit = commit.String()
	return found, true
}
