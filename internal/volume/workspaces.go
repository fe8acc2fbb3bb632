package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// Workspace is the record of a writable copy of a tree. It pins the tree, and all objects of the tree's store, until it is
// removed: also after the process that wrote it has ended, and after a reboot. Package workspace creates the copies.
type Workspace struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"` // published name of the tree
	Ref     events.Ref `json:"ref"`
	Commit  string     `json:"commit"`
	Tree    string     `json:"tree"`             // name of the tree's folder
	Kind    string     `json:"kind,omitempty"`   // overlay, reflink or copy; "" until the files are there
	Dir     string     `json:"dir"`              // absolute path of the copy
	Layers  string     `json:"layers,omitempty"` // absolute path of an overlay's upper layer and work folder
	Host    string     `json:"host"`             // name of the machine that Dir is on
	UID     int        `json:"uid"`
	Created time.Time  `json:"created"`

	Record string `json:"-"` // path of the record
	Source string `json:"-"` // path of the tree
}

const recordSuffix = ".json"

func (f folder) workspaces() string { return filepath.Join(f.dir, "workspaces") }

// folderOf returns the folder of the repository that a tree belongs to.
func folderOf(tree string) folder { return folder{filepath.Dir(filepath.Dir(tree))} }

// RemoteOf returns the URL of the remote that the repository of a tree is bound to, or "" if it has moved away. It contains no
// secret.
func RemoteOf(tree string) (string, error) {
	b, _, err := folderOf(tree).readBinding()
	if b.MovedAway.covers(filepath.Base(tree)) { // another repository may be at its path
		return "", err
	}
	return b.Remote, err
}

// ObjectsPin returns the path of the file to lock (flock, shared) to keep all objects of the store that a tree reads from, also
// those that the tree does not need. A workspace may have started to use them.
func ObjectsPin(tree string) (string, error) {
	store, err := checkout.GitDirOf(tree).Store()
	if err == nil && store == "" {
		err = errors.New("the tree of a view is no Git repository: use the name of its repository, without the view")
	}
	return objectsPin(store), err
}

func objectsPin(store string) string { return filepath.Join(store, "config") }

// RecordWorkspace writes the record of a workspace, or replaces it. w.Source is the tree; the caller holds its pin and that of its
// objects.
func RecordWorkspace(w Workspace) (Workspace, error) {
	f := folderOf(w.Source)
	w.Tree = filepath.Base(w.Source)
	w.Record = filepath.Join(f.workspaces(), w.ID+recordSuffix)
	content, err := json.Marshal(w)
	if err != nil {
		return w, err
	}
	if err := os.Mkdir(f.workspaces(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return w, disk.Error("record the workspace", err)
	}
	if err := disk.SyncDir(f.dir); err != nil {
		return w, disk.Error("record the workspace", err)
	}
	if err := disk.Replace(w.Record, append(content, '\n')); err != nil {
		return w, disk.Error("record the workspace", err)
	}
	return w, disk.Error("record the workspace", giveToOwner(f.dir, f.workspaces(), w.Record))
}

// giveToOwner gives files that root created to the owner of dir, who must be able to remove them.
func giveToOwner(dir string, paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	for _, path := range paths {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return nil
}

// ForgetWorkspace removes the record of a workspace, which unpins its tree.
func ForgetWorkspace(w Workspace) error {
	err := os.Remove(w.Record)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = disk.SyncDir(filepath.Dir(w.Record))
	}
	return disk.Error("forget the workspace", err)
}

// Workspaces lists the workspaces of all repositories of a volume. It yields an error for a record that cannot be read, with only
// Record set, and continues.
func (v *Volume) Workspaces() iter.Seq2[Workspace, error] {
	return func(yield func(Workspace, error) bool) {
		for owner, err := range subfolders(v.reposDir()) {
			if err != nil {
				yield(Workspace{}, err)
				return
			}
			for dir, err := range subfolders(owner) {
				if err != nil {
					yield(Workspace{}, err)
					return
				}
				for w, err := range (folder{dir}).listWorkspaces() {
					if !yield(w, err) {
						return
					}
				}
			}
		}
	}
}

// listWorkspaces lists the repository's workspaces, like [Volume.Workspaces].
func (f folder) listWorkspaces() iter.Seq2[Workspace, error] {
	return func(yield func(Workspace, error) bool) {
		entries, err := disk.ReadDir(f.workspaces())
		if err != nil {
			yield(Workspace{Record: f.workspaces()}, disk.Error("list the workspaces", err))
			return
		}
		for _, entry := range entries {
			if !strings.HasSuffix(entry.Name(), recordSuffix) { // left behind by a crash
				continue
			}
			if w, err := f.readWorkspace(entry.Name()); !errors.Is(err, os.ErrNotExist) && !yield(w, err) {
				return
			}
		}
	}
}

func (f folder) readWorkspace(name string) (Workspace, error) {
	path := filepath.Join(f.workspaces(), name)
	content, err := os.ReadFile(path)
	if err != nil {
		return Workspace{Record: path}, err
	}
	var w Workspace
	if err := json.Unmarshal(content, &w); err != nil || w.Tree == "" || w.Tree != filepath.Base(w.Tree) || w.ID+recordSuffix != name || !isClean(w.Dir) {
		return Workspace{Record: path}, fmt.Errorf("%s is damaged and pins all trees of the repository: delete it if its workspace is no longer used", path)
	}
	w.Record, w.Source = path, f.tree(w.Tree)
	return w, nil
}

// isClean reports whether a path is absolute and in its shortest form.
func isClean(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

// countWorkspaces returns the number of the repository's workspaces.
func (f folder) countWorkspaces() (n int) {
	f.listWorkspaces()(func(Workspace, error) bool { n++; return true })
	return n
}

// isPinnedByWorkspace reports whether the record of a workspace pins a tree. A record that cannot be read pins all.
func (f folder) isPinnedByWorkspace(tree string) bool {
	for w, err := range f.listWorkspaces() {
		if err != nil || w.Tree == tree {
			return true
		}
	}
	return false
}

// claimObjects locks the store against new workspaces. ok is false if a workspace may use objects that nothing else needs.
func (f folder) claimObjects(s store) (release func(), ok bool, err error) {
	release, ok, err = claimFile(objectsPin(s.dir))
	if err != nil || !ok {
		return nil, false, err
	}
	for w, err := range f.listWorkspaces() {
		dir := ""
		if err == nil {
			dir, err = checkout.GitDirOf(w.Source).Store()
		}
		if err != nil || dir == s.dir {
			release()
			return nil, false, nil
		}
	}
	return release, true, nil
}
