package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"lockstep/internal/git/checkout"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// Create makes a workspace that stays until [Remove].
type Create struct {
	Root string // of the volume
	Tree *tree.Tree
	Name string // published name of the tree
	Dir  string // to create; may be an empty folder
	Kind Kind   // optional
}

// Created is the outcome of a [Create].
type Created struct {
	volume.Workspace
	Remounted bool   // it existed already, and was not mounted since a reboot
	Reason    string // why it is not an overlay; "" if it is, or was not asked to be
}

// ErrExists means that the folder of a new workspace is not empty.
var ErrExists = errors.New("is not empty")

// Run makes the workspace. After a failure nothing is left of it. If the folder is that of an overlay which is not mounted since a
// reboot, Run mounts it again, with everything that was written to it.
func (c Create) Run(ctx context.Context) (Created, error) {
	dir, err := PathOf(c.Dir)
	if err == nil {
		c.Dir = dir
		err = c.check()
	}
	if err != nil {
		return Created{}, err
	}
	if created, found, err := c.mountAgain(); found || err != nil {
		return created, err
	}
	made, err := makeEmpty(c.Dir)
	if err != nil {
		return Created{}, err
	}
	release, err := claimFolder(c.Dir)
	if err != nil {
		return Created{}, err
	}
	defer release()
	if _, err := makeEmpty(c.Dir); err != nil { // filled meanwhile
		return Created{}, err
	}
	created, err := c.create(ctx)
	if err != nil {
		err = errors.Join(err, empty(c.Dir, made))
	}
	return created, err
}

// PathOf returns the path by which a workspace is recorded: absolute, without links. It need not exist.
func PathOf(dir string) (string, error) {
	path, err := filepath.Abs(dir)
	return resolved(path), err
}

func (c Create) check() error {
	err := checkOutside(c.Dir, c.Root)
	if err == nil && !utf8.ValidString(c.Dir) { // it could not be recorded
		err = fmt.Errorf("%q is not valid UTF-8: choose another folder", c.Dir)
	}
	return err
}

// checkOutside refuses a folder that is on the volume, or in a published tree.
func checkOutside(dir, root string) error {
	root, err := filepath.Abs(root)
	if err == nil && isWithin(dir, root) {
		err = fmt.Errorf("%s is on the volume %s: choose a folder elsewhere", dir, root)
	}
	return err
}

// makeEmpty creates a folder and those above it, or accepts an empty one. It returns the first folder that it created.
func makeEmpty(dir string) (made string, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil && len(entries) == 0:
		return "", nil
	case err == nil:
		return "", fmt.Errorf("%s %w: choose a new or empty folder", dir, ErrExists)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	for above := dir; errors.Is(err, fs.ErrNotExist); above = filepath.Dir(above) {
		made = above
		_, err = os.Lstat(filepath.Dir(above))
	}
	return made, os.MkdirAll(dir, 0o755)
}

// claimFolder locks the folder of a workspace, so that of several calls at once only one fills it or mounts there.
func claimFolder(dir string) (release func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	// Other errors are those of file systems without locks for folders, such as NFS.
	if errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%s is being filled by another workspace create: choose another folder", dir), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// empty undoes makeEmpty.
func empty(dir, made string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, removeAll(filepath.Join(dir, entry.Name())))
	}
	for ; made != "" && len(dir) >= len(made); dir = filepath.Dir(dir) {
		_ = os.Remove(dir) // others may have used it meanwhile
	}
	return err
}

// create fills the empty folder.
func (c Create) create(ctx context.Context) (created Created, err error) {
	objects, err := volume.ObjectsPin(c.Tree.Dir())
	if err != nil {
		return Created{}, err
	}
	pin, err := lockShared(objects)
	if err != nil {
		return Created{}, err
	}
	defer pin.Close()
	id := strings.ToLower(rand.Text()[:10])
	files, err := gitFiles(c.Tree.Dir(), c.Tree.Ref(), c.Tree.Commit(), id)
	if err != nil {
		return Created{}, err
	}
	host, _ := os.Hostname()
	w := volume.Workspace{
		ID: id, Name: c.Name, Ref: c.Tree.Ref(), Commit: c.Tree.Commit(), Source: c.Tree.Dir(), Dir: c.Dir, Host: host, UID: os.Geteuid(),
		Created: time.Now().UTC().Truncate(time.Second),
	}
	if c.Kind == "" || c.Kind == KindOverlay {
		created.Workspace, err = overlay(w, files)
		failed, forbidden := errors.AsType[*stepError](err)
		if !forbidden || c.Kind == KindOverlay {
			return created, err
		}
		created.Reason = failed.Error()
	}
	created.Workspace, err = c.clone(ctx, w, files)
	return created, err
}

// overlay makes the workspace as an overlay. The record is written before anything else, so that [Remove] finds it all.
func overlay(w volume.Workspace, files map[string]string) (made volume.Workspace, err error) {
	if !canMount() {
		return w, &stepError{step: stepCapability}
	}
	w.Kind, w.Layers = string(KindOverlay), layersOf(w.Dir, w.ID)
	if w, err = record(w); err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, detach(w, true), removeAll(w.Layers), volume.ForgetWorkspace(w))
		}
	}()
	if err := os.Mkdir(w.Layers, 0o700); err != nil {
		return w, err
	}
	if err := (layers{w.Layers}).create(w.Source, files); err != nil {
		return w, err
	}
	return w, mountCreated(w)
}

// layersOf returns the folder of an overlay's layers: beside the workspace, so on the same file system.
func layersOf(dir, id string) string {
	return filepath.Join(filepath.Dir(dir), ".lockstep-workspace-"+id)
}

func record(w volume.Workspace) (volume.Workspace, error) {
	w, err := volume.RecordWorkspace(w)
	if err != nil {
		err = fmt.Errorf("%w; a workspace that stays keeps its tree by a file on the volume: where that cannot be written, use workspace exec", err)
	}
	return w, err
}

// clone makes the workspace as a reflink or a copy. Its record has no kind until it is complete.
func (c Create) clone(ctx context.Context, w volume.Workspace, files map[string]string) (made volume.Workspace, err error) {
	if w, err = record(w); err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, volume.ForgetWorkspace(w))
		}
	}()
	git := checkout.GitDirOf(w.Dir)
	if err := writeGit(git.Dir, map[string]string{idFile: files[idFile]}); err != nil { // first, for Remove
		return w, err
	}
	kind, err := (&cloner{need: c.Kind == KindReflink}).clone(ctx, w.Source, w.Dir)
	if err == nil {
		err = errors.Join(writeGit(git.Dir, files), datedIndex(w.Source, git.Index(), true))
	}
	if err != nil {
		return w, err
	}
	w.Kind = string(kind)
	return volume.RecordWorkspace(w)
}

// mountCreated mounts the overlay of a workspace that [Create] made.
func mountCreated(w volume.Workspace) error {
	lower, err := os.Open(w.Source)
	if err != nil {
		return err
	}
	defer lower.Close()
	if err := (layers{w.Layers}).mount(lower, w.Dir, mountOptions{source: sourceOf(w), userXattr: inUserNamespace()}); err != nil {
		return err
	}
	if err := probe(w.Dir); err != nil {
		return errors.Join(err, detach(w, true))
	}
	return nil
}

// remount mounts an overlay whose folder may have gone with a temporary file system.
func remount(w volume.Workspace) error {
	if !canMount() {
		return &stepError{step: stepCapability}
	}
	if err := checkMountedElsewhere(w); err != nil {
		return err
	}
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return err
	}
	release, err := claimFolder(w.Dir)
	if err != nil {
		return err
	}
	defer release()
	if isMounted(w) {
		return fmt.Errorf("%s is the workspace %s of %s already", w.Dir, w.ID, w.Name)
	}
	return mountCreated(w)
}

// mountAgain mounts an overlay that was created in this folder before a reboot. found is false if there is none.
func (c Create) mountAgain() (created Created, found bool, err error) {
	v, err := volume.ViewVolume(c.Root)
	if err != nil {
		return Created{}, false, err
	}
	host, _ := os.Hostname()
	for w, err := range v.Workspaces() {
		if err != nil || w.Dir != c.Dir || w.Host != host || checkRecord(w) != nil {
			continue
		}
		switch state := stateOf(w); {
		case state == StateGone:
			continue
		case state == StateUnmounted && w.Name == c.Name:
			return Created{Workspace: w, Remounted: true}, true, remount(w)
		default:
			return Created{}, true, fmt.Errorf("%s is the workspace %s of %s already (%s): remove it with lockstep workspace rm %s", c.Dir, w.ID, w.Name, state, w.ID)
		}
	}
	return Created{}, false, nil
}
