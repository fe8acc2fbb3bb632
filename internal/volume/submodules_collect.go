package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/submodule"
	"lockstep/internal/git/wire"
)

// collector finds the submodules of a tree.
type collector struct {
	s       *syncer
	last    []checkout.Part // of the last tree
	fetches chan struct{}   // one for each fetch

	cancel  context.CancelFunc
	running sync.WaitGroup

	reading sync.Mutex   // held while a submodule is indexed or read, as that takes memory and the sync's only slot
	files   int          // in the tree and in the submodules that are not taken from the last one; guarded by reading
	number  atomic.Int64 // of the last submodule fetched

	mu     sync.Mutex
	found  []checkout.Part
	count  int                    // those found, and those being fetched
	failed error                  // ends the sync
	claims map[string]*sync.Mutex // see claim
	caught any                    // panic
}

// super is a repository with submodules: that of the tree, or a submodule.
type super struct {
	path       string // of its folder, with a slash at the end; "" for the tree
	depth      int
	url        string
	modules    map[string]submodule.Module // by path
	broken     error                       // why modules is empty, if it is permanent
	submodules map[string]object.ID        // commits by path
}

// collectParts returns the submodules of the plan's tree, and theirs. It fetches those that the repository
// does not have.
func (s *syncer) collectParts(ctx context.Context) ([]checkout.Part, error) {
	own, err := s.plan.Submodules()
	if err != nil || len(own) == 0 {
		return nil, err
	}
	top := super{url: s.req.URL, submodules: own}
	if err := top.read(s.objects, s.plan.Tree()); err != nil {
		return nil, err
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &collector{
		s: s, last: s.last.Parts().List, fetches: make(chan struct{}, maxFetches), cancel: cancel,
		claims: map[string]*sync.Mutex{}, files: s.plan.Size(),
	}
	s.slot.leave() // for those that are fetched: one at a time takes it
	c.collect(ctx, top)
	c.running.Wait()
	switch {
	case c.caught != nil:
		panic(c.caught)
	case outer.Err() != nil:
		return nil, context.Cause(outer)
	}
	slices.SortFunc(c.found, func(a, b checkout.Part) int { return cmp.Compare(a.Path, b.Path) })
	if c.failed != nil {
		return nil, c.failed
	}
	return c.found, s.takeSlot(outer)
}

// collect starts to find the submodules of a repository, and theirs.
func (c *collector) collect(ctx context.Context, in super) {
	for _, path := range slices.Sorted(maps.Keys(in.submodules)) {
		part := checkout.Part{Path: in.path + path, Commit: in.submodules[path]}
		m, listed := in.modules[path]
		if in.broken == nil && (!listed || m.Skip) {
			continue // an empty folder, as in Git
		}
		if !c.reserve(1) {
			c.fail(object.Quotaf("it has more than %d submodules, those of submodules included; use --submodules off", maxParts))
			return
		}
		c.running.Go(func() {
			defer func() {
				if caught := recover(); caught != nil {
					c.mu.Lock()
					c.caught = caught
					c.mu.Unlock()
					c.cancel()
				}
			}()
			err := in.broken
			if err == nil {
				part.URL, err = locate(in, part.Commit, m)
			}
			if err == nil && c.reuse(part) {
				return
			}
			if err == nil {
				err = c.add(ctx, in, &part)
			}
			if err != nil {
				c.lack(ctx, part, err)
			}
		})
	}
}

// reserve counts submodules. It returns false if they would be too many.
func (c *collector) reserve(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil || c.count+n > maxParts {
		return false
	}
	c.count += n
	return true
}

func (c *collector) keep(parts ...checkout.Part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, parts...)
}

// fail ends the sync. The first error counts: others may be its consequences.
func (c *collector) fail(err error) {
	c.mu.Lock()
	c.failed = cmp.Or(c.failed, err)
	c.mu.Unlock()
	c.cancel()
}

// read reads the .gitmodules of a repository.
func (in *super) read(objects *object.Store, tree object.ID) error {
	if len(in.submodules) == 0 {
		return nil
	}
	var err error
	in.modules, err = readModules(objects, tree)
	if err != nil && events.DispositionOf(err) == events.Permanent {
		in.modules, in.broken, err = nil, err, nil
	}
	return err
}

// readModules reads the .gitmodules of a repository.
func readModules(objects *object.Store, tree object.ID) (modules map[string]submodule.Module, err error) {
	defer object.RecoverCorrupt(&err)
	entries, err := objects.Tree(tree)
	if err != nil {
		return nil, object.Corruptf("read .gitmodules: %w", err)
	}
	for _, e := range entries {
		if e.Name != ".gitmodules" || e.Mode == filemode.Dir || e.Mode == filemode.Submodule {
			continue
		}
		content, ok, err := objects.SmallBlob(e.Hash, submodule.MaxSize)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, events.Errorf(events.Permanent, events.ClassConfig, "its .gitmodules is longer than %s",
				BytesText(submodule.MaxSize))
		}
		if modules, err = submodule.Parse(content); err != nil {
			return nil, events.Errorf(events.Permanent, events.ClassConfig, "its .gitmodules %w; correct it", err)
		}
	}
	return modules, nil
}

// locate returns the URL of a submodule.
func locate(in super, commit object.ID, m submodule.Module) (url string, err error) {
	if in.depth == maxPartDepth {
		return "", object.Quotaf("submodules nest deeper than %d", maxPartDepth)
	}
	if commit.IsZero() {
		return "", events.Errorf(events.Permanent, events.ClassHostile,
			"the tree has a hash of zeros for it, which is no commit")
	}
	if m.URL == "" {
		return "", events.Errorf(events.Permanent, events.ClassConfig, ".gitmodules names no URL for it; add it there")
	}
	if url, err = submodule.Resolve(in.url, m.URL); err == nil {
		url = strings.TrimRight(events.RemoteURL(url), "/")
		err = events.CheckRemote(url)
	}
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassConfig, "in .gitmodules, %w", err)
	}
	return url, nil
}

// reuse takes a submodule and those within it from the last tree, if that has all their files.
func (c *collector) reuse(part checkout.Part) bool {
	same := func(p checkout.Part) bool { return p == part }
	i := slices.IndexFunc(c.last, same)
	if i < 0 {
		return false
	}
	within := []checkout.Part{part}
	for _, p := range c.last {
		if isBelow(p.Path, part.Path) {
			within = append(within, p)
		}
	}
	missing := slices.ContainsFunc(within, func(p checkout.Part) bool {
		_, err := os.Lstat(c.s.f.part(p))
		return !p.IsFilled() || err != nil
	})
	if missing || !c.reserve(len(within)-1) {
		return false
	}
	c.keep(within...)
	return true
}

func isBelow(path, folder string) bool {
	return len(path) > len(folder) && path[len(folder)] == '/' && path[:len(folder)] == folder
}

// add fetches a submodule, unless the repository has it, and starts to find those within it.
func (c *collector) add(ctx context.Context, in super, part *checkout.Part) error {
	within := super{path: part.Path + "/", depth: in.depth + 1, url: part.URL}
	if err := c.openPart(ctx, part, &within); err != nil {
		return partError(err)
	}
	part.Credential = ""
	c.keep(*part)
	c.collect(ctx, within)
	return nil
}

// lack keeps a submodule that cannot be fetched, or ends the sync.
func (c *collector) lack(ctx context.Context, part checkout.Part, err error) {
	if err := c.s.accept(ctx, &part, err); err != nil {
		c.fail(err)
		return
	}
	c.keep(part)
}

// accept records in a submodule why it is missing, or returns an error that ends the sync.
func (s *syncer) accept(ctx context.Context, part *checkout.Part, err error) error {
	if s.req.Submodules == events.SubmodulesBestEffort && !wire.SameOrigin(s.req.URL, part.URL) {
		err = hostFault(err)
	}
	named := aboutPart(fmt.Errorf("submodule %q: %w", part.Path, err))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !isUnavailable(err):
		return named
	case s.req.Submodules == events.SubmodulesBestEffort:
		part.Class, part.Why = git.Class(events.ClassOf(err)), err.Error()
		return nil
	}
	return fmt.Errorf("%w; or use --submodules best-effort", named)
}
