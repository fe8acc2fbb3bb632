package checkout

import (
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// Links resolves the symbolic links of a commit. A target may pass through other links, so each verdict depends on all
// links of the commit, and on nothing else. Each link is resolved once. It is not safe for concurrent use.
type Links struct {
	// part returns the tree of a submodule's commit, if its folder has the files of that tree. Nil for none.
	part   func(commit object.ID) (tree object.ID, ok bool)
	root   *place
	folder func(object.ID) ([]object.TreeEntry, error)
	target func(object.ID) (string, error)
}

// linksOf returns the links of the plan's tree.
func (p *Plan) linksOf(objects *object.Store) *Links { return p.parts.Links(objects, p.tree) }

// Links returns the links of a tree object with these submodules.
func (p Parts) Links(objects *object.Store, tree object.ID) *Links {
	return &Links{part: p.treeIn(objects), root: &place{hash: tree}, folder: objects.Tree, target: objects.ReadLink}
}

// place is a folder or a link.
type place struct {
	parent  *place // nil for the root
	link    bool
	hash    object.ID
	entries map[string]*place // folders and links in a folder; nil if not read yet

	verdict verdict // of a link
	to      position
}

// position is a path in the tree: a folder, and the number of names below it that are neither folders nor links. They
// need not exist.
type position struct {
	folder *place
	below  int
	inGit  bool // the first of these names is the tree's .git
}

type verdict int

const (
	unresolved verdict = iota
	resolving
	inside
	outside
	endless // leads back to itself, so that nothing can follow it
)

// maxFollowed is the maximum number of links in a chain, as on Linux. All links of a longer one count as outside.
const maxFollowed = 40

// Leave reports whether the link at a path leads out of the tree or into its .git: as Linux follows it, or if names
// before ".." are dropped, as programs do that clean paths.
func (l *Links) Leave(at string) (bool, error) {
	folder := l.root
	for name := range strings.SplitSeq(path.Dir(at), "/") {
		if name == "." {
			break
		}
		below, err := l.enter(folder, name)
		if err != nil {
			return false, err
		}
		if below == nil || below.link {
			return false, object.Corruptf("folder of the link %q is not in the tree", at)
		}
		folder = below
	}
	link, err := l.enter(folder, path.Base(at))
	if err != nil {
		return false, err
	}
	if link == nil || !link.link {
		return false, object.Corruptf("link %q is not in the tree", at)
	}
	target, err := l.target(link.hash)
	if err != nil || targetLeaves(at, target) {
		return true, err
	}
	verdict, err := l.resolve(link, 1)
	return verdict == outside, err
}

// targetLeaves reports whether a target points out of the tree, or into its .git, if no part of it is a link.
func targetLeaves(at, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	to := path.Join(path.Dir(at), target)
	return to == ".." || strings.HasPrefix(to, "../") || to == ".git" || strings.HasPrefix(to, ".git/")
}

// resolve follows a link, the given number in a chain.
func (l *Links) resolve(link *place, number int) (verdict, error) {
	switch {
	case link.verdict == resolving:
		return endless, nil
	case link.verdict != unresolved:
		return link.verdict, nil
	case number > maxFollowed:
		return outside, nil
	}
	target, err := l.target(link.hash)
	if err != nil {
		return unresolved, err
	}
	link.verdict = resolving
	link.verdict, link.to, err = l.follow(link.parent, target, number)
	return link.verdict, err
}

// follow follows the target of a link in a folder.
func (l *Links) follow(folder *place, target string, number int) (verdict, position, error) {
	if path.IsAbs(target) {
		return outside, position{}, nil
	}
	at := position{folder: folder}
	for name := range strings.SplitSeq(target, "/") {
		switch {
		case name == "" || name == ".":
		case name == ".." && at.below > 0:
			at.below--
		case name == ".." && at.folder.parent == nil:
			return outside, position{}, nil
		case name == "..":
			at.folder = at.folder.parent
		case at.below > 0:
			at.below++
		default:
			next, err := l.enter(at.folder, name)
			switch {
			case err != nil:
				return unresolved, position{}, err
			case next == nil:
				at.below, at.inGit = 1, at.folder == l.root && name == ".git"
			case !next.link:
				at.folder = next
			default:
				verdict, err := l.resolve(next, number+1)
				if err != nil || verdict != inside {
					return verdict, position{}, err
				}
				at = next.to
			}
		}
	}
	if at.below > 0 && at.inGit {
		return outside, position{}, nil
	}
	return inside, at, nil
}

// enter returns a folder or link in a folder, or nil if there is none.
func (l *Links) enter(folder *place, name string) (*place, error) {
	if folder.entries == nil {
		entries, err := l.folder(folder.hash)
		if err != nil {
			return nil, object.Corruptf("resolve symbolic links: %w", err)
		}
		folder.entries = map[string]*place{}
		for _, e := range entries {
			switch {
			case e.Mode == filemode.Dir || e.Mode == filemode.Symlink:
				folder.entries[e.Name] = &place{parent: folder, link: e.Mode == filemode.Symlink, hash: e.Hash}
			case e.Mode == filemode.Submodule && l.part != nil:
				if tree, ok := l.part(e.Hash); ok {
					folder.entries[e.Name] = &place{parent: folder, hash: tree}
				}
			}
		}
	}
	return folder.entries[name], nil
}

// changesLinks reports whether any difference is of a symbolic link.
func changesLinks(found []difference) bool {
	for _, d := range found {
		if d.before.mode == filemode.Symlink || d.after.mode == filemode.Symlink {
			return true
		}
	}
	return false
}
