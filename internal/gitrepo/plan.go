package gitrepo

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// plan is a commit's whole tree, read and found sound: every name may be checked out, every object
// needed is present.
type plan struct {
	commit plumbing.Hash
	tree   plumbing.Hash
	root   []node
	size   int // entries, folders included
}

// node is one entry of a plan.
type node struct {
	name     string
	mode     filemode.FileMode
	hash     plumbing.Hash
	children []node // of a folder
}

// planner reads a plan.
type planner struct {
	objects *objects
	limit   int // entries
	size    int
	bytes   int // in the paths of all entries
}

const (
	maxDepth = 256       // folders within folders; a build has two files open for each
	maxPath  = 4095      // bytes, PATH_MAX on Linux less its NUL
	maxPaths = 256 << 20 // bytes in all paths together, which are in memory while a tree is built
)

var errTooManyFiles = errors.New("too many files")

// planCommit reads the tree of the commit that h comes down to, of at most limit entries. A
// missing object gives an error of ClassCorrupt.
func planCommit(ctx context.Context, objects *objects, h plumbing.Hash, limit int) (p *plan, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			p, err = nil, corrupt("read the tree of %s: panic: %v", h, cause)
		}
	}()
	commit, err := objects.commit(h)
	switch {
	case errors.Is(err, errNoCommit):
		return nil, noCommit(err)
	case err != nil:
		return nil, corrupt("read commit: %w", err)
	}
	pl := &planner{objects: objects, limit: limit}
	root, err := pl.read(ctx, commit.TreeHash, "", 0)
	if err != nil {
		return nil, fmt.Errorf("read the tree of %s: %w", commit.Hash, err)
	}
	return &plan{commit: commit.Hash, tree: commit.TreeHash, root: root, size: pl.size}, nil
}

func (pl *planner) read(ctx context.Context, tree plumbing.Hash, path string, depth int) ([]node, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if depth > maxDepth {
		return nil, hostile("folders nest deeper than %d", maxDepth)
	}
	entries, err := pl.objects.tree(tree)
	if err != nil {
		return nil, corrupt("folder %q: %w", path, err)
	}
	if pl.size += len(entries); pl.size > pl.limit {
		return nil, hostile("%w: more than %d; raise the limit if the repository is meant to be that large", errTooManyFiles, pl.limit)
	}
	nodes := make([]node, 0, len(entries))
	seen := make(map[string]bool, len(entries))
	for _, entry := range entries {
		if err := checkEntryName(entry.Name, entry.Mode); err != nil {
			return nil, hostile("%w: %q in folder %q", err, entry.Name, path)
		}
		length := len(path) + len(entry.Name)
		if pl.bytes += length; length > maxPath || pl.bytes > maxPaths {
			return nil, hostile("a path of %d bytes, all paths together %d: more than a checkout can have", length, pl.bytes)
		}
		if seen[entry.Name] {
			return nil, hostile("two entries named %q in folder %q", entry.Name, path)
		}
		seen[entry.Name] = true
		n := node{name: entry.Name, mode: entry.Mode, hash: entry.Hash}
		if err := pl.complete(ctx, &n, path, depth); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// complete reads a folder's children and makes sure that a file's blob is present.
func (pl *planner) complete(ctx context.Context, n *node, path string, depth int) (err error) {
	switch n.mode {
	case filemode.Dir:
		n.children, err = pl.read(ctx, n.hash, path+n.name+"/", depth+1)
		return err
	case filemode.Submodule:
		return nil
	}
	present, err := pl.objects.has(n.hash)
	if err != nil {
		return corrupt("%s%s: %w", path, n.name, err)
	}
	if !present {
		return corrupt("%s%s: blob %s is missing", path, n.name, n.hash)
	}
	return nil
}
