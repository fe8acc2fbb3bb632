package volume

import (
	"fmt"
	"path/filepath"
	"slices"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// Stored locates the objects of a tree's commit and of its history.
type Stored struct {
	Dir     string       // bare repository
	Shallow []object.ID  // commits whose parents are not kept; nil if the history is complete
	Depth   events.Depth // of the history
}

// StoreOf returns where the objects of a tree are. They stay as long as the tree does, which the caller has pinned.
func (v *Volume) StoreOf(tree string) (Stored, error) {
	g := checkout.GitDirOf(tree)
	dir, err := g.Store()
	if err == nil && dir == "" {
		err = fmt.Errorf("%s has no store", v.relative(tree))
	}
	if err != nil {
		return Stored{}, disk.Error("find the store of a tree", err)
	}
	return Stored{Dir: dir, Shallow: object.ReadShallow(g.Dir), Depth: depthOf(g)}, nil
}

// RemoteOf returns the URL of the remote that the repository of a tree is bound to, or "" if it has moved
// away. It contains no secret.
func RemoteOf(tree string) (string, error) {
	b, _, err := folderOf(tree).readBinding()
	if b.MovedAway.covers(filepath.Base(tree)) { // another repository may be at its path
		return "", err
	}
	return b.Remote, err
}

// Commits returns those of the given commits that a repository has trees of, published and replaced ones, by
// ref. It opens only these trees.
func (v *Volume) Commits(repo events.RepoPath, among []string) (map[events.Ref][]string, error) {
	if len(among) == 0 {
		return nil, nil
	}
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return nil, err
	}
	names, err := f.treesOf(b, among...)
	if err != nil {
		return nil, err
	}
	commits := map[events.Ref][]string{}
	for _, tree := range names {
		name, commit, ok := checkout.RefAndCommit(f.tree(tree))
		if ref, err := events.ParseRef(name); ok && err == nil && slices.Contains(among, commit) {
			commits[ref] = append(commits[ref], commit)
		}
	}
	return commits, nil
}
