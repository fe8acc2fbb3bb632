package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"lockstep/events"
)

var (
	// ErrNotPublished means that nothing is published under a name. Test with errors.Is.
	ErrNotPublished = errors.New("nothing is published under this name")

	// ErrGone means that a tree has been recycled. Open the current one instead: [Open] with the result's Path.
	ErrGone = errors.New("the tree is gone")
)

// Tree is an open tree: one commit of one ref, or a view of it. The caller closes it. It is safe for concurrent use.
type Tree struct {
	dir    *os.Root
	path   string
	pin    *os.File // nil if there is none
	commit string
	ref    events.Ref
}

// Open opens the tree that is now published below root under a name. The name is spelled as on disk:
// "acme/widgets", or "acme/widgets@v1" for a ref other than the default branch, with %2F for a slash and %25 for a percent
// sign in the ref; a long ref may be given whole. That of a view follows a ~, as in "acme/widgets@~/app/view" and
// "acme/widgets@v1~/app/view".
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
	name = onDisk(name)
	v, err := openVolume(root)
	if err != nil {
		return nil, err
	}
	defer v.close()
	// A tree may be recycled between reading its name and pinning it. The name then links to another tree.
	for range tries {
		path, err := v.published(name, repo)
		if err != nil {
			return nil, err
		}
		t, err := v.open(path)
		if !errors.Is(err, ErrGone) {
			return t, err
		}
	}
	return nil, fmt.Errorf("%w, but the name still links to it: if the volume is a network mount that caches names, "+
		"set tree-grace longer than the cache", ErrGone)
}

// tries limits how often Open reads the name. A tree is never replaced that often during one call.
const tries = 100

// OpenResult opens the tree that the result of a sync or a view names, even if a newer one is published.
func OpenResult(root string, r events.Result) (*Tree, error) {
	t, err := openResult(root, r)
	if err != nil {
		return nil, fmt.Errorf("open the tree of result %s: %w", r.ID, err)
	}
	return t, nil
}

func openResult(root string, r events.Result) (*Tree, error) {
	if r.Type != events.ResultSynced && r.Type != events.ResultView {
		return nil, fmt.Errorf("a result of type %q names no tree; only those of syncs and views do", r.Type)
	}
	if err := checkTreePath(r.Tree, r.Repo); err != nil {
		return nil, err
	}
	v, err := openVolume(root)
	if err != nil {
		return nil, err
	}
	defer v.close()
	t, err := v.open(r.Tree)
	if err != nil {
		return nil, err
	}
	_, name, _ := strings.Cut(filepath.Base(t.path), "-")
	if r.Subtree != "" && strings.HasPrefix(name, r.Subtree) { // other commits may have the same subtree
		t.commit, t.ref = r.After, r.Ref
	}
	if t.commit != r.After {
		return nil, errors.Join(fmt.Errorf("%w: another commit is in its place", ErrGone), t.Close())
	}
	return t, nil
}

// Dir returns the tree's absolute path, for child processes. It is valid until Close.
func (t *Tree) Dir() string { return t.path }

// Commit returns the tree's commit, in hexadecimal. That of a view is one of those with these files: the one
// of the result, or else the first.
func (t *Tree) Commit() string { return t.commit }

// Ref returns the ref that the commit was published for.
func (t *Tree) Ref() events.Ref { return t.ref }

// FS returns the tree's files without .git. It opens nothing outside the tree: symbolic links that lead out
// of it fail to open. It implements [fs.ReadFileFS], [fs.ReadDirFS], [fs.StatFS] and [fs.ReadLinkFS], and
// fails after Close.
func (t *Tree) FS() fs.FS { return treeFS{t.dir.FS()} }

// Pin returns the open file that holds the pin. A child process that inherits
// the file, for example by [os/exec.Cmd.ExtraFiles], keeps the tree in place while it runs, even if this process ends.
func (t *Tree) Pin() *os.File { return t.pin }

// Close releases the tree and its pin.
func (t *Tree) Close() error {
	err := t.dir.Close()
	if t.pin != nil { // nil if it could not be pinned
		err = errors.Join(err, t.pin.Close())
	}
	return err
}

func repoOf(name string) (events.RepoPath, error) {
	path, suffix, suffixed := strings.Cut(name, "@")
	repo, err := events.ParseRepoPath(path)
	ref, view, isView := strings.Cut(suffix, "~")
	switch {
	case err != nil:
	case isView && !viewPattern.MatchString(view):
		err = fmt.Errorf("%w: want /app/view after the ~", events.ErrBadRepoPath)
	case suffixed && (ref == "" && !isView || strings.ContainsAny(ref, "/\x00")):
		err = fmt.Errorf("%w: want a ref after the @, with %%2F for a slash", events.ErrBadRepoPath)
	}
	return repo, err
}

// longestSuffix is the length in bytes above which [events.Ref.Suffix] is cut.
const longestSuffix = 150

// onDisk returns a name as it is on disk.
func onDisk(name string) string {
	path, rest, _ := strings.Cut(name, "@")
	suffix, view, isView := strings.Cut(rest, "~")
	ref, err := events.ParseSuffix(suffix)
	if err != nil || len(suffix) <= longestSuffix {
		return name
	}
	name = path + "@" + ref.Suffix()
	if isView {
		name += "~" + view
	}
	return name
}

// viewPattern matches the names of an app and a view.
var viewPattern = regexp.MustCompile(`^(/[A-Za-z0-9][A-Za-z0-9._-]*){2}$`)

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
