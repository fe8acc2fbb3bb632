package volume

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/view"
)

// origin is what all subtrees of an app below a published name have last been published from.
type origin struct {
	Tree       string `json:"tree,omitempty"`       // whole tree; "" if each subtree is to be compared
	Selections string `json:"selections,omitempty"` // digest
}

// origins is a folder with a file for each folder of subtrees, {name}@{ref}~/{app}: {app}/{ref}~. It is there from
// before that folder is made until that is gone, and has its [origin] in JSON.
func (f folder) origins() string { return filepath.Join(f.dir, "subtrees") }

// origin returns the file of a folder of subtrees.
func (f folder) origin(dir string) string {
	_, suffix, _ := strings.Cut(path.Base(path.Dir(dir)), "@") // no name of a repository has one
	return filepath.Join(f.origins(), path.Base(dir), suffix)
}

// subtreeFolders returns the folders of all subtrees, relative to the root. Some may be missing.
func (f folder) subtreeFolders(b binding) (dirs []string, err error) {
	apps, err := disk.ReadDir(f.origins())
	for _, app := range apps {
		if err != nil {
			break
		}
		var notes []os.DirEntry
		notes, err = disk.ReadDir(filepath.Join(f.origins(), app.Name()))
		for _, note := range notes {
			dirs = append(dirs, b.Repo.String()+"@"+note.Name()+"/"+app.Name())
		}
	}
	return dirs, disk.Error("list the folders of subtrees", err) // ignoring it would delete trees
}

// originOf returns the tree that all subtrees of an app below a published name are of, or "" if some may not be.
func (f folder) originOf(v *Volume, name, app string, selections *view.Set) string {
	dir := subtreeFolder(name, app)
	noted := readCache[origin](f.origin(dir))
	if noted.Selections != selections.Digest() {
		return ""
	}
	links, err := disk.ReadDir(v.publishedPath(dir))
	if err != nil || len(links) < len(selections.Names()) { // some are gone
		return ""
	}
	return noted.Tree
}

// noteOrigin durably records the origin of the subtrees in a folder. The caller holds the file lock.
func (f folder) noteOrigin(dir string, now origin) error {
	content, err := json.Marshal(now)
	at := f.origin(dir)
	if _, missing := os.Lstat(filepath.Dir(at)); err == nil && missing != nil {
		err = os.MkdirAll(filepath.Dir(at), 0o755)
		err = cmp.Or(err, disk.SyncPath(f.dir, f.origins()))
	}
	if err == nil {
		err = disk.Replace(at, append(content, '\n'))
	}
	return disk.Error("note what subtrees are of", err)
}

// forgetOrigins makes the next publications into folders compare each subtree. The caller holds the file lock.
func (f folder) forgetOrigins(dirs []string) error {
	for _, dir := range dirs {
		if err := f.noteOrigin(dir, origin{}); err != nil {
			return err
		}
	}
	return nil
}

// forgetFolders removes those of the folders of subtrees that are empty, and the notes of those that are gone. The
// caller holds the file lock.
func (v *Volume) forgetFolders(f folder, dirs []string) error {
	for _, dir := range dirs {
		if err := removeEmpty(v.publishedPath(dir)); err != nil {
			return err
		}
		_, err := os.Lstat(v.publishedPath(dir))
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err := os.Remove(f.origin(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("forget a folder of subtrees", err)
		}
		_ = os.Remove(filepath.Dir(f.origin(dir))) // fails unless it was the app's last
	}
	return nil
}

// subtreeLinks returns the trees that the names in folders of subtrees link to, by path.
func (v *Volume) subtreeLinks(f folder, dirs ...string) (map[string]string, error) {
	var paths []string
	for _, dir := range dirs {
		names, err := disk.ReadDir(v.publishedPath(dir))
		if err != nil && !errors.Is(err, syscall.ENOTDIR) { // ignoring it would delete trees
			return nil, disk.Error("list the subtrees", err)
		}
		for _, name := range names {
			paths = append(paths, filepath.Join(v.publishedPath(dir), name.Name()))
		}
	}
	return v.linksAt(f, paths)
}

// withSubtrees returns links, such as [Volume.links], and those of all subtrees.
func (v *Volume) withSubtrees(
	links func(folder, binding) (map[string]string, error), f folder, b binding,
) (map[string]string, error) {
	all, err := links(f, b)
	if err != nil {
		return nil, err
	}
	dirs, err := f.subtreeFolders(b)
	if err != nil {
		return nil, err
	}
	subtrees, err := v.subtreeLinks(f, dirs...)
	maps.Copy(all, subtrees)
	return all, err
}

// ownSubtreeLinks returns the paths of subtreeLinks without those of a repository that has moved away.
func (v *Volume) ownSubtreeLinks(f folder, b binding, isChosen func(dir string) bool) ([]string, error) {
	dirs, err := f.subtreeFolders(b)
	if err != nil {
		return nil, err
	}
	links, err := v.subtreeLinks(f, slices.DeleteFunc(dirs, func(dir string) bool { return !isChosen(dir) })...)
	maps.DeleteFunc(links, func(_, tree string) bool { return b.MovedAway.covers(tree) })
	return slices.Collect(maps.Keys(links)), err
}

// SubtreesPublished reports whether [Volume.PublishSubtrees] has nothing to do for what is published for a ref
// now. isDefault says whether the ref has the plain name. It needs no lease.
func (v *Volume) SubtreesPublished(
	repo events.RepoPath, app string, ref events.Ref, isDefault bool, selections *view.Set,
) (bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return false, err
	}
	name := b.Repo.String()
	if !isDefault {
		name += "@" + ref.Suffix()
	}
	tree := f.originOf(v, name, app, selections)
	return tree != "" && tree == v.linkedTree(f, v.publishedPath(name)), nil
}

// DamagedSubtrees returns the sorted names of the subtrees of an app, below a published name, whose trees are
// marked as damaged or missing. [Volume.PublishSubtrees] replaces them.
func (v *Volume) DamagedSubtrees(
	repo events.RepoPath, path, app string, selections *view.Set,
) (damaged []string, err error) {
	f := v.folder(repo)
	if f.originOf(v, path, app, selections) != "" { // no damage was found since
		return nil, nil
	}
	links, err := v.subtreeLinks(f, subtreeFolder(path, app))
	for at, tree := range links {
		if _, err := os.Lstat(checkout.GitDirOf(f.tree(tree)).Ref()); errors.Is(err, os.ErrNotExist) {
			damaged = append(damaged, filepath.Base(at))
		}
	}
	slices.Sort(damaged)
	return damaged, err
}

// Subtrees returns the trees of published subtrees, relative to the root, by name.
func (v *Volume) Subtrees(repo events.RepoPath, path, app string, names []string) (map[string]string, error) {
	f, trees := v.folder(repo), map[string]string{}
	for _, name := range names {
		tree, err := v.readLink(f, v.publishedPath(SubtreePath(path, app, name)))
		if err == nil && tree == "" {
			err = errors.New("it is not published")
		}
		if err != nil {
			return nil, disk.Error("read the subtree "+name, err)
		}
		trees[name] = v.relative(f.tree(tree))
	}
	return trees, nil
}

// UnpublishSubtrees removes the names of the subtrees of apps and refs for which wanted returns false. isDefault says
// whether the ref has the plain name. The caller holds the lease.
func (v *Volume) UnpublishSubtrees(
	ctx context.Context, repo events.RepoPath, fence uint64, wanted func(app string, ref events.Ref, isDefault bool) bool,
) error {
	f := v.folder(repo)
	if _, err := os.Lstat(f.origins()); errors.Is(err, os.ErrNotExist) { // there are none
		return nil
	}
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return err
	}
	plain := v.current(f, b, b.Repo.String()).ref
	unwanted, err := v.ownSubtreeLinks(f, b, func(dir string) bool {
		top, app := path.Split(dir)
		suffix := strings.TrimSuffix(strings.TrimPrefix(top, b.Repo.String()+"@"), subtreeMark+"/")
		ref, err := events.ParseSuffix(suffix)
		switch {
		case suffix == "":
			ref, err = events.ParseRef(plain)
		case strings.Contains(suffix, "%."): // the beginning of a long name
			ref, err = events.ParseRef(v.current(f, b, b.Repo.String()+"@"+suffix).ref)
		}
		return err == nil && !ref.IsZero() && !wanted(app, ref, ref.String() == plain)
	})
	if err != nil || len(unwanted) == 0 {
		return err
	}
	return f.guarded(ctx, fence, func() error { return v.unpublishSubtrees(f, unwanted) })
}

// unpublishSubtrees removes names of subtrees. The caller holds the file lock.
func (v *Volume) unpublishSubtrees(f folder, paths []string) error {
	var dirs []string
	for _, at := range paths {
		dirs = append(dirs, v.relative(filepath.Dir(at)))
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	if err := f.forgetOrigins(dirs); err != nil { // first, so that a folder may stay, and IsTidy sees what a crash leaves
		return err
	}
	if err := unpublish(paths...); err != nil {
		return err
	}
	v.done("subtrees unpublished")
	return v.forgetFolders(f, dirs)
}
