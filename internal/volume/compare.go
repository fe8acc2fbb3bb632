package volume

import (
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
)

// Altered is a repository whose published trees are not as they were built.
type Altered struct {
	Repo  events.RepoPath
	Paths []string // relative to the trees; sorted
}

// Comparer compares the published trees of all repositories with their manifests. It is not safe for concurrent use.
type Comparer struct {
	v       *Volume
	pace    checkout.Pace
	known   map[string]checkout.Fingerprint // of trees without differences in the last pass, by path
	current map[string]checkout.Fingerprint // of those in this pass
}

// NewComparer returns a Comparer that reads at most rate bytes a second, and a quarter of that while this process syncs. Looking at
// a file counts as 4 KiB.
func (v *Volume) NewComparer(rate int64) *Comparer {
	pace := &pacer{rate: rate, busy: v.janitor.isSyncing}
	return &Comparer{v: v, pace: pace.wait}
}

// Pass compares every repository once and yields those with differences, and errors, after which it continues. It takes no lease:
// a sync may have replaced what it yields, so the caller confirms it with [VerifyRequest].Paths. Content is read only of trees
// with files that have changed since they were last compared, judging by their ctime.
func (c *Comparer) Pass(ctx context.Context) iter.Seq2[Altered, error] {
	return func(yield func(Altered, error) bool) {
		c.current = map[string]checkout.Fingerprint{}
		for repo, err := range c.v.Repos() {
			altered := Altered{Repo: repo}
			if err == nil {
				altered.Paths, err = c.compare(ctx, repo)
			}
			if ctx.Err() != nil || (err != nil || len(altered.Paths) > 0) && !yield(altered, err) {
				return
			}
		}
		c.known = c.current
	}
}

// compare returns the paths that differ in the published trees of a repository.
func (c *Comparer) compare(ctx context.Context, repo events.RepoPath) ([]string, error) {
	f := c.v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return nil, err
	}
	links, err := c.v.ownLinks(f, b)
	if err != nil {
		return nil, err
	}
	plain := c.v.publishedPath(b.Repo.String())
	if tree := c.v.linkedTree(f, plain); tree != "" && !b.MovedAway.covers(tree) {
		links[plain] = tree // even if the tree is missing
	}
	differ := map[string]bool{}
	for tree := range linkedTrees(links) {
		paths, err := c.compareTree(ctx, f, tree)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			differ[path] = true
		}
	}
	if err := c.compareViews(ctx, f, b, differ); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(differ)), nil
}

// compareTree returns the paths that differ in a tree: none if it is marked as damaged, or was deleted meanwhile.
func (c *Comparer) compareTree(ctx context.Context, f folder, tree string) (paths []string, err error) {
	path := f.tree(tree)
	if _, _, complete := checkout.RefAndCommit(path); !complete {
		if checkout.GitDirOf(path).IsMarked() {
			return nil, nil
		}
		return []string{".git"}, nil
	}
	return c.compareFiles(ctx, path, f.pointedIn(path))
}

// compareFiles returns the paths that differ in the tree at path.
func (c *Comparer) compareFiles(ctx context.Context, path string, pointed checkout.Pointed) (paths []string, err error) {
	now, found, err := checkout.Compare(ctx, path, c.known[path], c.pace, pointed)
	if len(found) > 0 || err != nil {
		if _, gone := os.Lstat(path); errors.Is(gone, os.ErrNotExist) {
			found, err = slices.DeleteFunc(found, func(d checkout.Difference) bool { return d.Missing }), nil
		}
	}
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		paths = append(paths, d.Path)
	}
	if now != (checkout.Fingerprint{}) {
		c.current[path] = now
	}
	return paths, nil
}

// checkPaths compares the requested paths of trees with their manifests.
func (c *verifier) checkPaths(trees []string) error {
	for _, tree := range trees {
		path := c.f.tree(tree)
		if err := c.checkPathsOf([]string{path}, c.req.Paths, c.f.pointedIn(path)); err != nil {
			return err
		}
	}
	return nil
}

// checkPathsOf compares some paths of the trees at others with their manifests.
func (c *verifier) checkPathsOf(trees, paths []string, pointed checkout.Pointed) error {
	for _, path := range trees {
		differ, err := checkout.CompareSome(c.ctx, path, paths, pointed)
		if err != nil {
			return err
		}
		for _, name := range differ {
			c.check.Found(path+"/"+name, "altered")
		}
		if len(differ) > 0 {
			c.check.NoteDamagedTree(path)
		}
	}
	return nil
}

// pointedIn returns the targets of the LFS pointers in a tree's store, and in those of its submodules.
func (f folder) pointedIn(tree string) checkout.Pointed {
	return func(blob object.ID, sum [sha256.Size]byte, size int64) bool {
		store, err := checkout.GitDirOf(tree).Store()
		if err != nil {
			return false
		}
		parts, err := checkout.GitDirOf(tree).Parts()
		if err != nil {
			return false
		}
		objects := object.Open(append([]string{store}, f.partsOf(parts)...)...)
		defer objects.Close()
		return pointedBy(objects)(blob, sum, size)
	}
}

// pointedBy returns the targets of the LFS pointers in a store.
func pointedBy(objects *object.Store) checkout.Pointed {
	return func(blob object.ID, sum [sha256.Size]byte, size int64) bool {
		pointer, ok, err := lfs.ReadPointer(objects, blob)
		return err == nil && ok && pointer.Size == size && (pointer.OID == sum || size == 0) // git-lfs ignores the OID of an empty object
	}
}

// pacer limits how fast one goroutine reads.
type pacer struct {
	rate int64       // bytes a second
	busy func() bool // divides the rate by busyShare
	due  time.Time   // when everything so far may have been read
}

const (
	busyShare = 4
	paceSlack = 10 * time.Millisecond // shorter waits are added up
)

// wait is a [checkout.Pace].
func (p *pacer) wait(ctx context.Context, bytes int64) error {
	cost := time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second))
	if p.busy() {
		cost *= busyShare
	}
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(cost)
	if left := p.due.Sub(now); left > paceSlack {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
