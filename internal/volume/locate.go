package volume

import (
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// Located is a published ref.
type Located struct {
	Ref    events.Ref
	Commit string
	Name   string       // published name, relative to the root
	Tree   string       // the tree that the name links to, relative to the root
	Depth  events.Depth // history that Git sees in the tree
}

// Locate returns how a ref of a repository is published; the zero ref selects that of the plain name. It
// returns false if the ref is not published, or its tree is marked as damaged. It needs no lease and reads a
// few small files.
func (v *Volume) Locate(repo events.RepoPath, ref events.Ref) (Located, bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err == nil && !bound {
		err = v.checkMounted()
	}
	if err != nil || !bound {
		return Located{}, false, err
	}
	names := []string{b.Repo.String()}
	if !ref.IsZero() {
		names = append(names, b.Repo.String()+"@"+ref.Suffix())
	}
	for _, name := range names {
		now := v.current(f, b, name)
		found, err := events.ParseRef(now.ref)
		if now.tree == "" || err != nil || !ref.IsZero() && found != ref {
			continue
		}
		return Located{
			Ref: found, Commit: now.commit, Name: name, Tree: v.relative(f.tree(now.tree)),
			Depth: depthOf(checkout.GitDirOf(f.tree(now.tree))),
		}, true, nil
	}
	return Located{}, false, nil
}

// TreesAt lists the trees, relative to the root, that were published for a ref at a commit and may still be
// there, such as one that was replaced lately. They stay only while pinned. Trees that a purge deletes are
// left out.
func (v *Volume) TreesAt(repo events.RepoPath, ref events.Ref, commit string) (trees []string, err error) {
	f := v.folder(repo)
	b, _, err := f.readBinding()
	if err != nil {
		return nil, err
	}
	entries, err := disk.ReadDir(f.trees())
	if err != nil {
		return nil, disk.Error("list the trees", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if _, rest, _ := strings.Cut(name, "-"); b.MovedAway.covers(name) ||
			!strings.HasPrefix(rest, commit[:min(12, len(commit))]) {
			continue
		}
		if ofRef, at, ok := checkout.RefAndCommit(f.tree(name)); ok && ofRef == ref.String() && at == commit &&
			!f.isPurged(name) {
			trees = append(trees, filepath.ToSlash(v.relative(f.tree(name))))
		}
	}
	return trees, nil
}
