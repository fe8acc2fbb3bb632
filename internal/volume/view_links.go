package volume

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/view"
)

// viewLinks describes the links of an app's views of a published name, {name}@{ref}~/{app}/{view}. Its file
// exists before its folder, and as long. Its file may be lost in a power cut: then it counts as unfinished.
type viewLinks struct {
	suffix, app string // in the name of the file: of the published name, "" for the plain one; and the app

	Tree   string `json:"tree"`   // whole tree whose files the views have; "" if the links are unfinished
	Commit string `json:"commit"` // of that tree
	Kind   string `json:"kind"`   // see viewKind
	Views  string `json:"views"`  // digest of the views
}

// file returns the path of the file.
func (l viewLinks) file(f folder) string {
	return filepath.Join(f.viewLinks(), l.suffix+viewMark, l.app+linksExt)
}

// ref returns the ref of the published name, zero for the plain one.
func (l viewLinks) ref() (events.Ref, error) {
	return events.ParseRef(strings.NewReplacer("%2F", "/", "%25", "%").Replace(l.suffix))
}

const linksExt = ".json"

// viewMark separates what belongs to views in names. No ref and no app has it.
const viewMark = "~"

// folder returns the path of the published folder. The name of a repository may end in a viewMark, but has no @.
func (l viewLinks) folder(v *Volume, b binding) string {
	return filepath.Join(v.publishedPath(b.Repo.String()+"@"+l.suffix+viewMark), l.app)
}

// viewLinksAt returns the links of an app's views of a name, such as "acme/widgets" or "acme/widgets@ref",
// unfinished if there are none.
func viewLinksAt(f folder, b binding, name, app string) (viewLinks, error) {
	l := viewLinks{suffix: strings.TrimPrefix(strings.TrimPrefix(name, b.Repo.String()), "@"), app: app}
	content, err := os.ReadFile(l.file(f))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, disk.Error("read the links of views", err)
	}
	if json.Unmarshal(content, &l) != nil {
		return viewLinks{suffix: l.suffix, app: app}, nil
	}
	return l, nil
}

// areOf reports whether the links are of these views, and none has been deleted.
func (l viewLinks) areOf(v *Volume, b binding, views *view.Set) bool {
	if l.Views != views.Digest() {
		return false
	}
	names, err := disk.ReadDir(l.folder(v, b))
	return err == nil && len(names) >= views.Len()
}

// write replaces the file. What is not synced may be lost.
func (l viewLinks) write(f folder, synced bool) error {
	content, err := json.Marshal(l)
	dir := filepath.Dir(l.file(f))
	if _, missing := os.Lstat(dir); err == nil && missing != nil {
		if err = os.MkdirAll(dir, 0o755); err == nil && synced {
			err = disk.SyncPath(f.dir, filepath.Dir(dir))
		}
	}
	replace := disk.ReplaceUnsynced
	if synced {
		replace = disk.Replace
	}
	if err == nil {
		err = replace(l.file(f), append(content, '\n'))
	}
	return disk.Error("write the links of views", err)
}

// allViewLinks returns the links of the views of all apps and names.
func (v *Volume) allViewLinks(f folder, b binding) (all []viewLinks, err error) {
	names, err := disk.ReadDir(f.viewLinks())
	if err != nil {
		return nil, disk.Error("list the links of views", err)
	}
	for _, name := range names {
		apps, err := disk.ReadDir(filepath.Join(f.viewLinks(), name.Name()))
		if err != nil {
			return nil, disk.Error("list the links of views", err)
		}
		for _, file := range apps {
			app, ok := strings.CutSuffix(file.Name(), linksExt)
			if !ok { // a temporary file
				continue
			}
			l, err := viewLinksAt(f, b, b.Repo.String()+"@"+strings.TrimSuffix(name.Name(), viewMark), app)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
	}
	return all, nil
}

// trees returns the trees that the links lead to, by their paths.
func (l viewLinks) trees(v *Volume, f folder, b binding) (map[string]string, error) {
	dir := l.folder(v, b)
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return nil, disk.Error("list the views", err)
	}
	paths := make([]string, len(entries))
	for i, entry := range entries {
		paths[i] = filepath.Join(dir, entry.Name())
	}
	return v.linksAt(f.views(), paths)
}

// viewTreeLinks returns the trees of all views, by the paths that link to them.
func (v *Volume) viewTreeLinks(f folder, b binding) (map[string]string, error) {
	links := map[string]string{}
	all, err := v.allViewLinks(f, b)
	for _, l := range all {
		if err != nil {
			return nil, err
		}
		var own map[string]string
		own, err = l.trees(v, f, b)
		maps.Copy(links, own)
	}
	return links, err
}

// isOf reports whether the links belong to a repository that has moved away. Unfinished ones do while no
// other is at its path.
func (l viewLinks) isOf(d *tombstone, bound bool) bool {
	return d != nil && (d.covers(l.Tree) || l.Tree == "" && !bound)
}

// unpublishViews removes the names of the chosen views. Their trees are retired by [Volume.GC]. The caller
// holds the file lock.
func (v *Volume) unpublishViews(f folder, b binding, chosen func(viewLinks) bool) error {
	all, err := v.allViewLinks(f, b)
	if err != nil {
		return err
	}
	for _, l := range all {
		if !chosen(l) {
			continue
		}
		dir := l.folder(v, b)
		if err := f.discard(dir); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(dir)) // fails while other apps have views of the name
		err := disk.SyncDir(filepath.Dir(filepath.Dir(dir)))
		if err == nil {
			err = os.Remove(l.file(f))
			_ = os.Remove(filepath.Dir(l.file(f)))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return disk.Error("unpublish views", err)
		}
	}
	return nil
}

// unfinishViews makes the next publication of all views compare each link. The caller holds the file lock.
func (v *Volume) unfinishViews(f folder, b binding) error {
	all, err := v.allViewLinks(f, b)
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Tree == "" {
			continue
		}
		l.Tree = ""
		if err := l.write(f, true); err != nil {
			return err
		}
	}
	return nil
}
