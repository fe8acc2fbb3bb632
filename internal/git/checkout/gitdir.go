package checkout

import (
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"lockstep/internal/disk"
	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// GitDir is the small .git of a tree, with which Git works in the tree. It has no remote, and reads objects from a
// store.
type GitDir struct{ Dir string }

// GitDirOf returns the .git of a tree.
func GitDirOf(tree string) GitDir { return GitDir{filepath.Join(tree, ".git")} }

// Index returns the path of the index that Git uses.
func (g GitDir) Index() string { return filepath.Join(g.Dir, "index") }

// Manifest returns the path of the index as it was written when the tree was built.
func (g GitDir) Manifest() string { return filepath.Join(g.Dir, "lockstep-index") }

// treeConfig ignores the ctime of files: it changes with the link count when trees share a file.
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

// WriteGit creates the .git of the tree at path, which has the files and commit checked out for ref, or turns
// that of a prepared tree into it. former is what [GitDir.Former] is to return. alternates is the relative path of the
// store's objects. That of a selection is not a Git repository, because equal selections of several commits are one tree.
func (f *Files) WriteGit(
	path string, ref string, commit object.ID, former string, h History, links LinkPolicy, alternates string,
) error {
	g := GitDirOf(path)
	contents := map[string]string{
		"objects/info/alternates": alternates + "\n",
		"lockstep-ref":            ref + "\n",
		"lockstep-commit":         commit.String() + "\n",
		pinFile:                   "",
	}
	if f.large != "" {
		contents[largeName] = f.large + "\n"
	}
	folders := []string{".", "objects", "objects/info"}
	if f.isSelection {
		contents[filepath.Base(g.Manifest())] = string(f.made.encode(f.format))
		written, _, err := writeFiles(g.Dir, folders, contents, nil)
		f.GitWritten = below(".git", written)
		return err
	}
	maps.Copy(contents, map[string]string{
		"config":         f.format.Configure(treeConfig),
		"lockstep-depth": h.Depth.String() + "\n",
		"HEAD":           commit.String() + "\n",
		linksName:        string(links) + "\n",
	})
	if former != "" {
		contents[formerName] = former + "\n"
	}
	if strings.HasPrefix(ref, "refs/heads/") {
		contents["HEAD"] = "ref: " + ref + "\n"
		contents["packed-refs"] = "# pack-refs with: peeled fully-peeled sorted \n" + commit.String() + " " + ref + "\n"
	}
	if len(h.Shallow) > 0 {
		contents["shallow"] = string(object.EncodeShallow(h.Shallow))
	}
	own, inParts := f.made, manifest(nil)
	if f.parts.Mode != "" {
		contents[partsName] = f.parts.String()
	}
	if f.parts.isFilled() {
		own, inParts = f.made.split()
		contents[filepath.Base(g.PartsManifest())] = string(inParts.encode(f.format))
	}
	folders = append(folders, "objects/pack", "refs", "refs/heads", "refs/tags")
	written, changed, err := writeFiles(g.Dir, folders, contents,
		[]string{filepath.Base(g.Index()), filepath.Base(g.Manifest())})
	if err != nil {
		return err
	}
	if err := g.writeIndex(own.encode(f.format)); err != nil {
		return err
	}
	if f.Changed != nil {
		f.Changed = append(f.Changed, below(".git", changed)...)
	}
	f.GitWritten = append(below(".git", written), ".git/index")
	return nil
}

// below returns the paths of names in a folder.
func below(folder string, names []string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = path.Join(folder, name)
	}
	return paths
}

// Files lists the files in the .git, but not the manifest, which is a link to the index.
func (g GitDir) Files() (paths []string, err error) {
	err = filepath.WalkDir(g.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && path != g.Manifest() {
			paths = append(paths, path)
		}
		return nil
	})
	return paths, err
}

// Depth returns the requested depth of the history that Git sees in the tree.
func (g GitDir) Depth() git.Depth { return ReadDepth(filepath.Join(g.Dir, "lockstep-depth")) }

// Links returns the policy with which the tree was built, "" if it is not known.
func (g GitDir) Links() LinkPolicy {
	links, _ := readLine(filepath.Join(g.Dir, linksName))
	return LinkPolicy(links)
}

// largeName is a file in trees that have large files.
const largeName = "lockstep-lfs"

// Large returns what of Git LFS the tree was built with, "" for nothing.
func (g GitDir) Large() string {
	text, err := readLine(filepath.Join(g.Dir, largeName))
	if err != nil {
		return ""
	}
	return text
}

// formerName is a file with the name of the tree that was published for the ref before.
const formerName = "lockstep-former"

// Former returns the name of the tree that was published for the ref before, "" if there was none.
func (g GitDir) Former() string {
	former, _ := readLine(filepath.Join(g.Dir, formerName))
	return former
}

// linksName is a file with the policy with which the tree was built.
const linksName = "lockstep-links"

// readLine reads a file with one line.
func readLine(path string) (string, error) {
	content, err := os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}

// Store returns the folder of the store that the tree reads objects from, or "" for none.
func (g GitDir) Store() (string, error) {
	objects := filepath.Join(g.Dir, "objects")
	line, err := readLine(filepath.Join(objects, "info", "alternates"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return filepath.Dir(filepath.Join(objects, line)), err
}

// indexLead is added to the modification time of the index. Git re-reads files that are as new as the index,
// which would slow down the first "git status".
const indexLead = 2 * time.Second

// writeIndex writes the index and links the manifest to it. Git replaces the index when it changes, which leaves
// the manifest as it is. It overwrites the index of a prepared tree, which is read completely when the tree is opened.
func (g GitDir) writeIndex(content []byte) error {
	if !isPair(g.Index(), g.Manifest()) {
		for _, path := range []string{g.Index(), g.Manifest()} {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := overwrite(g.Index(), content); err != nil {
		return err
	}
	ahead := time.Now().Add(indexLead)
	if err := os.Chtimes(g.Index(), ahead, ahead); err != nil {
		return err
	}
	if err := os.Link(g.Index(), g.Manifest()); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// OpenTree opens a published tree to build on. It returns nil if the tree is damaged or was built with another link
// policy.
func OpenTree(tree string, links LinkPolicy) *Tree {
	g := GitDirOf(tree)
	_, commit, ok := g.RefAndCommit()
	if !ok || g.Links() != links {
		return nil
	}
	h := object.ParseID(commit)
	size, err := sizeOfManifest(g.Manifest(), h.Format())
	if err != nil {
		return nil
	}
	parts, err := g.Parts()
	if err != nil {
		return nil
	}
	inParts := 0
	if parts.isFilled() {
		if inParts, err = sizeOfManifest(g.PartsManifest(), h.Format()); err != nil {
			return nil
		}
	}
	read := sync.OnceValues(func() (manifest, error) { return g.readFiles(h.Format()) })
	return &Tree{
		path: tree, commit: h, size: size, links: links, large: g.Large(), parts: parts, inParts: inParts, read: read,
	}
}

// RefAndCommit returns the ref and commit of a complete tree; ok is false if tree is not one, is of a selection,
// or its store is gone.
func RefAndCommit(tree string) (ref, commit string, ok bool) {
	if SelectionOf(tree) != "" {
		return "", "", false
	}
	ref, commit, ok = GitDirOf(tree).RefAndCommit()
	_, rest, _ := strings.Cut(filepath.Base(tree), "-")
	return ref, commit, ok && strings.HasPrefix(rest, commit[:12])
}

// RefAndCommit is [RefAndCommit] for a tree with any folder name.
func (g GitDir) RefAndCommit() (ref, commit string, ok bool) {
	ref, err := readLine(g.Ref())
	if err != nil {
		return "", "", false
	}
	commit, err = readLine(filepath.Join(g.Dir, "lockstep-commit"))
	if err != nil || !object.IsID(commit) {
		return "", "", false
	}
	store, err := g.Store()
	if err != nil || store == "" {
		return ref, commit, false
	}
	_, err = os.Lstat(filepath.Join(store, "objects"))
	return ref, commit, err == nil
}

// Ref returns the path of the file that marks a tree as complete: see RefAndCommit.
func (g GitDir) Ref() string { return filepath.Join(g.Dir, "lockstep-ref") }

// BuiltFor returns the ref of a tree, even if the tree is marked as damaged.
func (g GitDir) BuiltFor() (ref string, err error) {
	ref, err = readLine(g.Ref())
	if errors.Is(err, os.ErrNotExist) {
		ref, err = readLine(filepath.Join(g.Dir, damagedRef))
	}
	return ref, err
}

// BuiltFrom returns the commit of a tree, even if the tree is marked as damaged; "" if it is not known.
func (g GitDir) BuiltFrom() string {
	commit, err := readLine(filepath.Join(g.Dir, "lockstep-commit"))
	if err != nil || !object.IsID(commit) {
		return ""
	}
	return commit
}

// Unmake marks a tree as damaged. Git can still be used in it.
func (g GitDir) Unmake() error {
	if err := os.Rename(g.Ref(), filepath.Join(g.Dir, damagedRef)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return disk.SyncDir(g.Dir)
}

// IsMarked reports whether a tree is marked as damaged.
func (g GitDir) IsMarked() bool {
	_, err := os.Lstat(filepath.Join(g.Dir, damagedRef))
	return err == nil
}

// damagedRef holds the ref of a tree that is marked as damaged. Package tree still opens such a tree.
const damagedRef = "lockstep-damaged"

// Head is the HEAD of a tree; Ref is "" if it is detached.
type Head struct{ Ref, Commit string }

// Head reads HEAD.
func (g GitDir) Head() (Head, error) {
	line, err := readLine(filepath.Join(g.Dir, "HEAD"))
	if err != nil {
		return Head{}, err
	}
	ref, symbolic := strings.CutPrefix(line, "ref: ")
	if !symbolic {
		return Head{Commit: line}, nil
	}
	if commit, err := readLine(filepath.Join(g.Dir, filepath.FromSlash(ref))); err == nil {
		return Head{ref, commit}, nil
	}
	packed, err := os.ReadFile(filepath.Join(g.Dir, "packed-refs"))
	for line := range strings.Lines(string(packed)) {
		if commit, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == ref {
			return Head{ref, commit}, nil
		}
	}
	return Head{Ref: ref}, err
}

// pinFile is an empty file in a tree's .git. A reader pins the tree with a shared lock on this file, and then checks
// that the tree is still in place. Package tree does both; docs/reading.md describes the steps for other readers.
const pinFile = "lockstep-pin"

// Pin returns the path of the file that readers lock.
func (g GitDir) Pin() string { return filepath.Join(g.Dir, pinFile) }

// History describes the available history of a commit.
type History struct {
	Depth   git.Depth   // as requested
	Shallow []object.ID // commits whose parents are missing
}

// ReadDepth reads a depth from a file; it returns 0 on failure.
func ReadDepth(path string) git.Depth {
	line, err := readLine(path)
	if err != nil {
		return 0
	}
	return git.ParseDepth(line)
}
