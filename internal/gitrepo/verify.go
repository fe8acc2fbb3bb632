package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
)

// VerifyRequest asks that all that a repository has on the volume be read and checked.
type VerifyRequest struct {
	Repo   events.RepoPath
	Fence  uint64 // of the lease held on Repo; above zero
	Repair bool   // mark what is damaged, so that the next sync of each ref replaces it
}

// Report says what a [Volume.Verify] has read and found.
type Report struct {
	Trees    int       `json:"trees"`
	Files    int64     `json:"files"`   // in trees, each tree's counted
	Objects  int64     `json:"objects"` // in stores
	Bytes    int64     `json:"bytes"`   // read
	Found    int       `json:"found"`   // problems
	Problems []Problem `json:"problems"`
	Marked   []string  `json:"marked,omitempty"` // trees and stores to be replaced, relative to the root
}

// Problem is one thing that is not as it was made.
type Problem struct {
	Path string `json:"path"` // relative to the root
	What string `json:"what"`
}

// maxProblems is how many problems a report lists. It counts them all.
const maxProblems = 100

// Verify reads everything that the repository has on the volume: objects inflate and hash to their
// names, what the store's refs name is complete, and each tree is its commit, file for file. It takes as
// long as the disk takes to read it. Readers are not disturbed. The caller holds the lease, as for
// [Volume.Sync].
//
// A tree that is marked for repair is no longer taken for whole: readers keep it until the next sync of
// its ref has built another. A store that is marked is followed by a next one, fetched anew. What is so
// marked, and published no more, is not looked at again.
func (v *Volume) Verify(ctx context.Context, req VerifyRequest) (Report, error) {
	if err := v.checkRequest(req.Repo, req.Fence); err != nil {
		return Report{}, err
	}
	c := &verifier{ctx: ctx, v: v, f: v.folder(req.Repo), req: req, hashes: map[inode]plumbing.Hash{}}
	if err := c.run(); err != nil {
		return Report{}, fmt.Errorf("verify %s: %w", req.Repo, c.f.explain(ctx, req.Fence, err))
	}
	return c.report, nil
}

// verifier is one Verify on its way.
type verifier struct {
	ctx context.Context // of one Verify
	v   *Volume
	f   folder
	req VerifyRequest

	damagedTrees  []string
	damagedStores []store

	mu     sync.Mutex // guards what follows
	report Report
	hashes map[inode]plumbing.Hash // of files that trees share
}

// found notes a problem with what is at path.
func (c *verifier) found(path, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Found++
	if len(c.report.Problems) < maxProblems {
		c.report.Problems = append(c.report.Problems, Problem{c.v.relative(path), fmt.Sprintf(format, args...)})
	}
}

func (c *verifier) problems() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report.Found
}

// read counts bytes that were read and were right.
func (c *verifier) read(n int64) {
	c.mu.Lock()
	c.report.Bytes += n
	c.mu.Unlock()
}

func (c *verifier) run() error {
	if _, err := os.Lstat(c.f.dir); errors.Is(err, os.ErrNotExist) {
		return notHere(c.req.Repo)
	}
	if _, err := c.f.floor(); err != nil {
		c.found(c.f.fence(), "%v", err)
		return nil // without a fence nothing can be done here
	}
	if err := c.f.record(c.ctx, c.req.Fence); err != nil {
		return err
	}
	b, bound, err := c.f.readBinding()
	switch {
	case err != nil:
		c.found(c.f.binding(), "%v", err)
		b.Repo = c.req.Repo
	case !bound && b.Left == nil:
		return notHere(c.req.Repo)
	}
	links, err := c.v.allLinks(c.f, b)
	if err != nil {
		return err
	}
	trees, err := c.trees(links)
	if err != nil {
		return err
	}
	stores, err := c.stores(trees)
	if err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(stores)) {
		if err := c.checkStore(store{dir}, stores[dir]); err != nil {
			return err
		}
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if !c.req.Repair || len(c.damagedTrees)+len(c.damagedStores) == 0 {
		return nil
	}
	return c.f.guarded(c.ctx, c.req.Fence, c.mark)
}

func notHere(repo events.RepoPath) error {
	return events.Errorf(events.Permanent, events.ClassNotFound, "%s is not on this volume", repo)
}

// trees lists the trees to look at: all but those that were marked and that no name links to any more.
func (c *verifier) trees(links map[string]string) (trees []string, err error) {
	linked := map[string]bool{}
	for path, tree := range links {
		linked[tree] = true
		if _, err := os.Stat(c.f.tree(tree)); err != nil {
			c.found(path, "the tree that it links to is not there; sync to build it again")
		}
	}
	entries, err := readDir(c.f.trees())
	if err != nil {
		return nil, volumeError("list the trees", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, buildPrefix) {
			continue
		}
		_, err := os.Lstat(gitDirOf(c.f.tree(name)).ref())
		marked := errors.Is(err, os.ErrNotExist)
		switch {
		case marked && linked[name]:
			c.found(c.f.tree(name), "it is marked as damaged; sync to replace it")
		case !marked:
			trees = append(trees, name)
		}
	}
	return trees, nil
}

// stores groups trees by the store that they read from. The current store is always among them. A tree
// that names no store is damaged, and not in any group.
func (c *verifier) stores(trees []string) (map[string][]string, error) {
	stores := map[string][]string{}
	current, err := c.f.currentStore()
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(current.dir); err == nil {
		stores[current.dir] = nil
	}
	for _, tree := range trees {
		path := c.f.tree(tree)
		dir, err := gitDirOf(path).store()
		if err == nil && dir != "" {
			_, err = os.Lstat(filepath.Join(dir, "objects"))
		}
		if err != nil || filepath.Dir(dir) != c.f.stores() {
			c.found(path, "its objects/info/alternates does not lead to a store")
			c.damagedTrees = append(c.damagedTrees, tree)
			continue
		}
		stores[dir] = append(stores[dir], tree)
	}
	return stores, nil
}

// checkStore checks a store, and the trees that read from it.
func (c *verifier) checkStore(s store, trees []string) error {
	before := c.problems()
	objects, err := c.checkObjects(s)
	if err != nil {
		return err
	}
	defer objects.close()
	if err := c.checkRefs(s, objects); err != nil {
		return err
	}
	if c.problems() > before {
		c.damagedStores = append(c.damagedStores, s)
	}
	for _, tree := range trees {
		before := c.problems()
		if err := c.checkTree(tree, objects); err != nil {
			return err
		}
		c.report.Trees++
		if c.problems() > before {
			c.damagedTrees = append(c.damagedTrees, tree)
		}
	}
	return nil
}

// mark has the next sync make anew what is damaged, and whatever reads from it. The caller holds the file
// lock. A crash half-way leaves the rest unmarked, to be found again.
func (c *verifier) mark() error {
	current, err := c.f.currentStore()
	if err != nil {
		return err
	}
	trees := c.damagedTrees
	for _, damaged := range c.damagedStores {
		all, err := readDir(c.f.trees())
		if err != nil {
			return volumeError("list the trees", err)
		}
		for _, tree := range all {
			if dir, err := gitDirOf(c.f.tree(tree.Name())).store(); err == nil && dir == damaged.dir {
				trees = append(trees, tree.Name())
			}
		}
		if damaged == current {
			if err := c.f.beginStore(); err != nil {
				return err
			}
		}
		c.report.Marked = append(c.report.Marked, c.v.relative(damaged.dir))
	}
	slices.Sort(trees)
	for _, tree := range slices.Compact(trees) {
		if err := gitDirOf(c.f.tree(tree)).unmake(); err != nil {
			return volumeError("mark a damaged tree", err)
		}
		c.report.Marked = append(c.report.Marked, c.v.relative(c.f.tree(tree)))
	}
	return nil
}

// beginStore makes a store that has nothing, and is the current one from now on.
func (f folder) beginStore() error {
	next, err := f.nextStore()
	if err != nil {
		return err
	}
	if err := next.ensure(); err != nil {
		return err
	}
	return volumeError("begin a new store", replaceFile(filepath.Join(next.dir, "packed-refs"), nil))
}

// ref is the file without which a tree is not taken for whole: see checkedOut.
func (g gitDir) ref() string { return filepath.Join(g.dir, "lockstep-ref") }

// builtFor returns the ref that a tree was built for, also of one that is marked as damaged.
func (g gitDir) builtFor() (events.Ref, error) {
	line, err := os.ReadFile(g.ref())
	if errors.Is(err, os.ErrNotExist) {
		line, err = os.ReadFile(filepath.Join(g.dir, damagedRef))
	}
	if err != nil {
		return events.Ref{}, err
	}
	return events.ParseRef(strings.TrimSpace(string(line)))
}

// damagedRef is where a tree's ref is kept that is marked as damaged: package tree goes on opening it.
const damagedRef = "lockstep-damaged"

// unmake has a tree not be taken for whole any more. Git goes on working in it as far as it can.
func (g gitDir) unmake() error {
	if err := os.Rename(g.ref(), filepath.Join(g.dir, damagedRef)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncDir(g.dir)
}
