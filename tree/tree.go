package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
)

var (
	// ErrNotPublished is wrapped when nothing is published under a name.
	ErrNotPublished = errors.New("nothing is published there")

	// ErrGone is wrapped when a tree has been recycled. Ask for the current one: [Open] with the
	// result's Path.
	ErrGone = errors.New("the tree is gone")
)

// Tree is an open tree: one commit of one ref. It must be closed. It is safe for concurrent use.
type Tree struct {
	dir    *os.Root
	path   string
	pin    *os.File // nil for none
	commit string
	ref    events.Ref
}

// Open opens the tree that is published below root under a name now, spelled as on disk:
// "acme/widgets", or "acme/widgets@v1" for another ref than the default branch, with %2F for a slash.
func Open(root, name string) (*Tree, error) {
	t, err := openName(root, name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return t, nil
}

func openName(root, name string) (*Tree, error) {
	repo, err := repoOf(name)
	if err != nil {
		return nil, err
	}
	v, err := openVolume(root)
	if err != nil {
		return nil, err
	}
	defer v.close()
	// A tree may be recycled between our reading the name and our pin, but then the name names another.
	for range tries {
		path, err := v.published(name, repo)
		if err != nil {
			return nil, err
		}
		t, err := v.open(path, name)
		if !errors.Is(err, ErrGone) {
			return t, err
		}
	}
	return nil, fmt.Errorf("%w, and the name still leads there: if the volume is a network mount that caches names for long, raise tree-grace above that", ErrGone)
}

// tries is how often Open reads the name anew: more often than a tree can be replaced meanwhile.
const tries = 100

// OpenResult opens the very tree that a synced result names, whatever is published by now.
func OpenResult(root string, r events.Result) (*Tree, error) {
	t, err := openResult(root, r)
	if err != nil {
		return nil, fmt.Errorf("open the tree of result %s: %w", r.ID, err)
	}
	return t, nil
}

func openResult(root string, r events.Result) (*Tree, error) {
	if r.Type != events.ResultSynced {
		return nil, fmt.Errorf("a result of type %q names no tree; only a synced one does", r.Type)
	}
	if err := checkTreePath(r.Tree, r.Repo); err != nil {
		return nil, err
	}
	v, err := openVolume(root)
	if err != nil {
		return nil, err
	}
	defer v.close()
	t, err := v.open(r.Tree, r.Path)
	if err != nil {
		return nil, err
	}
	if t.commit != r.After {
		return nil, errors.Join(fmt.Errorf("%w: another commit is in its place", ErrGone), t.Close())
	}
	return t, nil
}

// Dir returns the tree's absolute path, for child processes. It is the tree's until Close.
func (t *Tree) Dir() string { return t.path }

// Commit returns the commit that the tree is of, in hexadecimal.
func (t *Tree) Commit() string { return t.commit }

// Ref returns the ref that the commit was published for.
func (t *Tree) Ref() events.Ref { return t.ref }

// FS returns the tree's files, but not its .git. Files are opened below the tree and nowhere else: a
// symbolic link that leads out of it, of which a commit may have any number, fails to open. It
// implements [fs.ReadFileFS], [fs.ReadDirFS], [fs.StatFS] and [fs.ReadLinkFS], and fails after Close.
func (t *Tree) FS() fs.FS { return treeFS{t.dir.FS()} }

// Pin returns the open file that holds the pin, nil when there is none because an earlier version
// built the tree. A child process that inherits it, as by [os/exec.Cmd.ExtraFiles], keeps the tree in
// its place for as long as it runs, whatever becomes of this process.
func (t *Tree) Pin() *os.File { return t.pin }

// Close lets go of the tree.
func (t *Tree) Close() error {
	err := t.dir.Close()
	if t.pin != nil {
		err = errors.Join(err, t.pin.Close())
	}
	return err
}

// repoOf returns the repository of a published name.
func repoOf(name string) (events.RepoPath, error) {
	path, suffix, suffixed := strings.Cut(name, "@")
	repo, err := events.ParseRepoPath(path)
	if err == nil && suffixed && (suffix == "" || strings.ContainsAny(suffix, "/\x00")) {
		err = fmt.Errorf("%w: what follows the @ is no ref's name on disk; write %%2F for a slash", events.ErrBadRepoPath)
	}
	return repo, err
}

// volume is the root that Lockstep publishes below.
type volume struct {
	dir  *os.Root
	path string
}

func openVolume(root string) (volume, error) {
	path, err := filepath.Abs(root)
	if err != nil {
		return volume{}, err
	}
	dir, err := os.OpenRoot(path)
	return volume{dir, path}, err
}

func (v volume) close() { _ = v.dir.Close() }
