package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	return Stored{Dir: dir, Shallow: object.ReadShallow(g.Dir), Depth: depthOf(g)}, nil
}

// PinObjects keeps all objects of the store that a tree reads from, until the returned file is closed. The
// caller has pinned the tree, and keeps the pin of one tree of that store. While the store is pruned,
// PinObjects waits: until ctx is done, or for 10 s, as the process that prunes may be stopped.
func PinObjects(ctx context.Context, tree string) (*os.File, error) {
	store, err := checkout.GitDirOf(tree).Store()
	if err == nil && (store == "" || checkout.SelectionOf(tree) != "") {
		err = errors.New("the tree of a view is no Git repository: use the name of its repository, without the view")
	}
	if err != nil {
		return nil, disk.Error("pin the objects of a tree", err)
	}
	file, err := os.Open(objectsPin(store))
	if err != nil {
		return nil, disk.Error("pin the objects of a tree", err)
	}
	if err := awaitLock(ctx, file, unix.LOCK_SH); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// objectsPin returns the path of the file that is locked (flock, shared) to keep all objects of a store, also
// those that no tree needs: git may have found them there in a workspace.
func objectsPin(store string) string { return filepath.Join(store, "config") }

// claimObjects locks the objects of a store against new pins. ok is false if one may use objects that nothing
// else needs.
func claimObjects(s store) (release func(), ok bool, err error) { return claimFile(objectsPin(s.dir)) }

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
	wanted := map[string]bool{} // how names of trees end
	for _, commit := range among {
		wanted[fmt.Sprintf("%.12s", commit)] = true
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return nil, err
	}
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	commits := map[events.Ref][]string{}
	for _, entry := range entries {
		_, end, _ := strings.Cut(entry.Name(), "-")
		if !wanted[end[:min(len(end), 12)]] || b.MovedAway.covers(entry.Name()) {
			continue
		}
		name, commit, ok := checkout.RefAndCommit(filepath.Join(f.trees(), entry.Name()))
		if ref, err := events.ParseRef(name); ok && err == nil && slices.Contains(among, commit) {
			commits[ref] = append(commits[ref], commit)
		}
	}
	return commits, nil
}
