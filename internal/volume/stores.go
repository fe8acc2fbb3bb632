package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	return Stored{Dir: dir, Shallow: object.ReadShallow(g.Dir), Depth: g.Depth()}, nil
}

// PinObjects keeps all objects of the store that a tree reads from, until the returned file is closed. The caller has pinned the tree,
// and keeps the pin of one tree of that store. While a purge rewrites the store, PinObjects waits: until ctx is done, or for 10 s, as the
// purge may be stopped.
func PinObjects(ctx context.Context, tree string) (*os.File, error) {
	path, err := ObjectsPin(tree)
	if err != nil {
		return nil, disk.Error("pin the objects of a tree", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, disk.Error("pin the objects of a tree", err)
	}
	if err := awaitLock(ctx, file, unix.LOCK_SH); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Former is a commit that a repository has a tree of, and the fence with which that was published: a later one has a higher fence.
type Former struct {
	Commit string
	Fence  uint64
}

// Former returns the commits that a repository has trees of, published and replaced ones, by ref.
func (v *Volume) Former(repo events.RepoPath) (map[events.Ref][]Former, error) {
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return nil, err
	}
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	former := map[events.Ref][]Former{}
	for _, entry := range entries {
		if isPrivate(entry.Name()) || b.MovedAway.covers(entry.Name()) {
			continue
		}
		name, commit, ok := checkout.RefAndCommit(filepath.Join(f.trees(), entry.Name()))
		if ref, err := events.ParseRef(name); ok && err == nil {
			former[ref] = append(former[ref], Former{commit, FenceOf(entry.Name())})
		}
	}
	return former, nil
}

// FenceOf returns the fence in the path of a published tree; 0 for another path.
func FenceOf(tree string) uint64 {
	text, _, _ := strings.Cut(filepath.Base(tree), "-")
	fence, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return fence
}
