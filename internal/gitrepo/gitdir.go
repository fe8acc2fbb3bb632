package gitrepo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/events"
)

// gitDir is the small .git of a tree. It has no objects of its own and no remote; plain Git works
// in the tree by it.
type gitDir struct{ dir string }

func gitDirOf(tree string) gitDir { return gitDir{filepath.Join(tree, ".git")} }

func (g gitDir) index() string    { return filepath.Join(g.dir, "index") }
func (g gitDir) manifest() string { return filepath.Join(g.dir, "lockstep-index") }

// treeConfig keeps Git from rewriting what it need not: the trees that share a file change its
// link count, and with it its ctime.
const treeConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = false
	trustctime = false
	checkStat = minimal
[gc]
	auto = 0
[maintenance]
	auto = false
`

// write makes the .git of a tree that checks commit out for ref, with links made by a policy, and reads objects
// from the store at the end of the relative path alternates.
func (g gitDir) write(ref events.Ref, commit plumbing.Hash, h history, links LinkPolicy, alternates string) error {
	files := map[string]string{
		"config":                  treeConfig,
		"objects/info/alternates": alternates + "\n",
		"lockstep-ref":            ref.String() + "\n",
		"lockstep-commit":         commit.String() + "\n",
		"lockstep-depth":          h.depth.String() + "\n",
		"HEAD":                    commit.String() + "\n",
		"lockstep-links":          string(links) + "\n",
		pinFile:                   "",
	}
	if strings.HasPrefix(ref.String(), "refs/heads/") {
		files["HEAD"] = "ref: " + ref.String() + "\n"
		files["packed-refs"] = "# pack-refs with: peeled fully-peeled sorted \n" + commit.String() + " " + ref.String() + "\n"
	}
	for _, sub := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(g.dir, filepath.FromSlash(sub)), 0o755); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(g.dir, filepath.FromSlash(name)), []byte(content), 0o644); err != nil {
			return err
		}
	}
	shallow := filepath.Join(g.dir, "shallow")
	if len(h.shallow) > 0 {
		return os.WriteFile(shallow, shallowLines(h.shallow), 0o644)
	}
	if err := os.Remove(shallow); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// files lists the files in it that have content.
func (g gitDir) files() (paths []string, err error) {
	err = filepath.WalkDir(g.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != pinFile && path != g.manifest() {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

// depth is how deep the history was asked for that Git sees in the tree.
func (g gitDir) depth() events.Depth { return readDepth(filepath.Join(g.dir, "lockstep-depth")) }

// links is the policy by which the tree's links were made.
func (g gitDir) links() LinkPolicy {
	content, err := os.ReadFile(filepath.Join(g.dir, "lockstep-links"))
	if err != nil {
		return LinksKeep // an earlier version's
	}
	return LinkPolicy(strings.TrimSpace(string(content)))
}

// store returns the folder of the store that the tree reads objects from, or "" when it reads none.
func (g gitDir) store() (string, error) {
	objects := filepath.Join(g.dir, "objects")
	line, err := os.ReadFile(filepath.Join(objects, "info", "alternates"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return filepath.Dir(filepath.Join(objects, strings.TrimSpace(string(line)))), err
}

// indexLead is how far the index is dated ahead of the files it describes. Git distrusts entries as
// young as the index itself and would read all those files again at the first "git status".
const indexLead = 2 * time.Second

// writeIndex writes the index, and a second name for it: Git puts a new file in the place of the
// index when somebody adds to it, and the tree's manifest stays.
func (g gitDir) writeIndex(content []byte) error {
	for _, path := range []string{g.index(), g.manifest()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.WriteFile(g.index(), content, 0o644); err != nil {
		return err
	}
	ahead := time.Now().Add(indexLead)
	if err := os.Chtimes(g.index(), ahead, ahead); err != nil {
		return err
	}
	return os.Link(g.index(), g.manifest())
}

// openLastTree returns what a published tree was built of; nil when it cannot be used. Of a tree whose links
// were made by another policy than is wanted now, it does not say enough.
func openLastTree(tree string, links LinkPolicy) *lastTree {
	g := gitDirOf(tree)
	_, commit, ok := g.subject()
	if !ok || g.links() != links {
		return nil
	}
	size, err := sizeOfManifest(g.manifest())
	if err != nil {
		return nil
	}
	read := sync.OnceValues(func() (manifest, error) { return readManifest(g.manifest()) })
	return &lastTree{path: tree, commit: plumbing.NewHash(commit), size: size, read: read}
}

// checkedOut returns the ref and the commit that a whole tree was built for; ok is false when path
// is no such tree, or has lost its store.
func checkedOut(tree string) (ref, commit string, ok bool) {
	ref, commit, ok = gitDirOf(tree).subject()
	_, rest, _ := strings.Cut(filepath.Base(tree), "-")
	return ref, commit, ok && strings.HasPrefix(rest, commit[:12])
}

// subject is checkedOut for a tree that need not have its name.
func (g gitDir) subject() (ref, commit string, ok bool) {
	refLine, err := os.ReadFile(filepath.Join(g.dir, "lockstep-ref"))
	if err != nil {
		return "", "", false
	}
	commitLine, err := os.ReadFile(filepath.Join(g.dir, "lockstep-commit"))
	if err != nil {
		return "", "", false
	}
	store, err := g.store()
	if err != nil || store == "" {
		return "", "", false
	}
	if _, err := os.Lstat(filepath.Join(store, "objects")); err != nil {
		return "", "", false
	}
	ref, commit = strings.TrimSpace(string(refLine)), strings.TrimSpace(string(commitLine))
	return ref, commit, plumbing.IsHash(commit)
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

// unmake has a tree not be taken for whole any more. Git goes on working in it as far as it can.
func (g gitDir) unmake() error {
	if err := os.Rename(g.ref(), filepath.Join(g.dir, damagedRef)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncDir(g.dir)
}

// damagedRef is where a tree's ref is kept that is marked as damaged: package tree goes on opening it.
const damagedRef = "lockstep-damaged"

// head is what a tree's HEAD says; ref is "" when it is detached.
type head struct{ ref, commit string }

func (g gitDir) head() (head, error) {
	content, err := os.ReadFile(filepath.Join(g.dir, "HEAD"))
	if err != nil {
		return head{}, err
	}
	line := strings.TrimSpace(string(content))
	ref, symbolic := strings.CutPrefix(line, "ref: ")
	if !symbolic {
		return head{commit: line}, nil
	}
	if loose, err := os.ReadFile(filepath.Join(g.dir, filepath.FromSlash(ref))); err == nil {
		return head{ref, strings.TrimSpace(string(loose))}, nil
	}
	packed, err := os.ReadFile(filepath.Join(g.dir, "packed-refs"))
	for line := range strings.Lines(string(packed)) {
		if commit, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == ref {
			return head{ref, commit}, nil
		}
	}
	return head{ref: ref}, err
}

// pinFile is an empty file in a tree's .git. Whoever reads the tree may hold a shared lock on it, and
// looks, once it has the lock, whether the tree is still in its place: package tree does, and
// docs/reading.md says how others do.
const pinFile = "lockstep-pin"

func (g gitDir) pin() string { return filepath.Join(g.dir, pinFile) }

// history is how much of a commit's history there is.
type history struct {
	depth   events.Depth    // as it was asked for
	shallow []plumbing.Hash // commits in it whose parents are not there
}

func readDepth(path string) events.Depth {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	depth, err := events.ParseDepth(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	return depth
}
