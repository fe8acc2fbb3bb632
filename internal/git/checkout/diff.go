package checkout

import (
	"cmp"
	"context"
	"encoding/base64"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// differences lists the differences between two trees, sorted by path; before may be zero. It checks the names in
// folders that differ, and reads at most limit entries of each tree.
func differences(ctx context.Context, objects *object.Store, before, after object.ID, limit int) ([]difference, error) {
	w := &walker{ctx: ctx, objects: objects, limit: limit}
	if err := w.compare(before, after, "", 0); err != nil {
		return nil, err
	}
	slices.SortFunc(w.found, func(a, b difference) int { return cmp.Compare(a.path, b.path) })
	return w.found, nil
}

// Limits bounds the size of a tree.
type Limits struct {
	MaxFiles     int   // listed changed files
	MaxTreeFiles int   // files in a tree
	MaxTreeBytes int64 // in all files of a tree
	MaxFileBytes int64 // in one file; enforced by package object
}

// File is a file that differs between two commits.
type File struct {
	Path, Raw     string // Raw is the path in base64 if that is not UTF-8, or ""
	From, FromRaw string // the old path of a renamed file
	Status        FileStatus
	Outside       bool // a symbolic link that leads out of the tree
}

// FileStatus is how a file differs.
type FileStatus string

// The statuses.
const (
	FileAdded       FileStatus = "added"
	FileModified    FileStatus = "modified"
	FileDeleted     FileStatus = "deleted"
	FileRenamed     FileStatus = "renamed" // same content, previously at From
	FileModeChanged FileStatus = "mode"    // same content; the executable bit changed
)

// Changes lists files that differ between two commits, or all files of one.
type Changes struct {
	base      string // the commit compared with; empty for none
	Files     []File
	Full      bool // base is unknown: Files lists the whole tree
	Truncated bool
}

// ChangesSince compares the plan with the commit base. If base is missing or incomplete in the repository's
// stores, it lists all files as added.
func (p *Plan) ChangesSince(ctx context.Context, objects *object.Store, base string, limits Limits) (Changes, error) {
	c := Changes{base: base}
	found, known := p.differencesFrom(ctx, objects, base, limits.MaxTreeFiles)
	if ctx.Err() != nil {
		return Changes{}, context.Cause(ctx)
	}
	if !known {
		c.Full = base != ""
		var err error
		if found, err = p.all(ctx, objects, limits.MaxTreeFiles); err != nil {
			return Changes{}, err
		}
	}
	c.Files = listFiles(found)
	if len(c.Files) > limits.MaxFiles {
		c.Files, c.Truncated = slices.Clone(c.Files[:limits.MaxFiles]), true
	}
	return c, markLinks(p.linksOf(objects), found, c.Files)
}

// markLinks sets Outside for symbolic links that lead out of the tree.
func markLinks(links *Links, found []difference, files []File) (err error) {
	defer object.RecoverCorrupt(&err)
	isLink := map[string]bool{}
	for _, d := range found {
		if d.after.mode == filemode.Symlink {
			isLink[d.path] = true
		}
	}
	for i, file := range files {
		if isLink[file.Path] {
			if files[i].Outside, err = links.Leave(file.Path); err != nil {
				return err
			}
		}
	}
	return nil
}

// differencesFrom lists the differences from the commit base; known is false if base cannot be read.
func (p *Plan) differencesFrom(
	ctx context.Context, objects *object.Store, base string, limit int,
) (found []difference, known bool) {
	if !object.IsID(base) {
		return nil, false
	}
	commit := object.ParseID(base)
	if p.last != nil && p.last.commit == commit {
		if found, err := p.changedSinceLast(); err == nil {
			return found, true
		}
	}
	defer func() {
		if recover() != nil {
			found, known = nil, false
		}
	}()
	tree, ok := objects.TreeOf(commit)
	if !ok {
		return nil, false
	}
	found, err := differences(ctx, objects, tree, p.tree, limit)
	return found, err == nil
}

// all lists all files of the tree.
func (p *Plan) all(ctx context.Context, objects *object.Store, limit int) (found []difference, err error) {
	if !p.incremental {
		return p.own, nil
	}
	defer object.RecoverCorrupt(&err)
	return differences(ctx, objects, object.ZeroID, p.tree, limit)
}

// changedSinceLast lists the differences from the last tree, according to its manifest if its objects are no
// longer in a store.
func (p *Plan) changedSinceLast() ([]difference, error) {
	if p.comparesLast {
		return p.sinceLast, nil
	}
	last, err := p.last.read()
	if err != nil {
		return nil, err
	}
	items, err := p.Items()
	if err != nil {
		return nil, err
	}
	last = slices.DeleteFunc(slices.Clone(last), func(t tracked) bool { return t.inPart })
	items = slices.DeleteFunc(items, func(it Item) bool { return it.inPart })
	var found []difference
	cut := func(until func(path string) bool) {
		for len(last) > 0 && until(last[0].path) {
			found = append(found, difference{path: last[0].path, before: side{last[0].mode, last[0].hash}})
			last = last[1:]
		}
	}
	for _, it := range items {
		cut(func(path string) bool { return path < it.path })
		now, was := side{it.mode, it.hash}, side{}
		if len(last) > 0 && last[0].path == it.path {
			was, last = side{last[0].mode, last[0].hash}, last[1:]
		}
		if now != was {
			found = append(found, difference{path: it.path, before: was, after: now})
		}
	}
	cut(func(string) bool { return true })
	return found, nil
}

// listFiles returns the changed files, sorted by path. A deleted and an added file with the same content are a
// rename.
func listFiles(found []difference) []File {
	origins := renames(found)
	moved := map[string]bool{}
	for _, from := range origins {
		moved[from] = true
	}
	files := make([]File, 0, len(found))
	for _, d := range found {
		if d.after.mode == 0 && moved[d.path] {
			continue
		}
		file := File{Path: d.path, Status: d.status()}
		if from, renamed := origins[d.path]; renamed {
			file.Status, file.From, file.FromRaw = FileRenamed, from, raw(from)
		}
		file.Raw = raw(d.path)
		files = append(files, file)
	}
	return files
}

// raw returns path in base64 if it is not UTF-8, or "".
func raw(path string) string {
	if utf8.ValidString(path) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(path))
}

func (d difference) status() FileStatus {
	regular := func(s side) bool { return s.mode == filemode.Regular || s.mode == filemode.Executable }
	switch {
	case d.before.mode == 0:
		return FileAdded
	case d.after.mode == 0:
		return FileDeleted
	case d.before.hash == d.after.hash && regular(d.before) && regular(d.after):
		return FileModeChanged
	}
	return FileModified
}

var emptyBlobs = map[object.ID]bool{
	object.SHA1.Hash(plumbing.BlobObject, nil):   true,
	object.SHA256.Hash(plumbing.BlobObject, nil): true,
}

// renames pairs added files, in order, with deleted files of the same content and mode, as git diff-tree
// -M100% does: with one of the same base name if there is any, otherwise with the first. It ignores empty
// files. It returns the old path of each new one.
func renames(found []difference) map[string]string {
	type match struct {
		side
		name string // "" for any
	}
	deleted := map[match][]string{}
	for _, d := range found {
		if d.after.mode == 0 && !emptyBlobs[d.before.hash] {
			for _, k := range []match{{d.before, path.Base(d.path)}, {d.before, ""}} {
				deleted[k] = append(deleted[k], d.path)
			}
		}
	}
	origins, used := map[string]string{}, map[string]bool{}
	if len(deleted) == 0 {
		return origins
	}
	for _, d := range found {
		if d.before.mode != 0 {
			continue
		}
		for _, k := range []match{{d.after, path.Base(d.path)}, {d.after, ""}} {
			for len(deleted[k]) > 0 && used[deleted[k][0]] {
				deleted[k] = deleted[k][1:]
			}
			if len(deleted[k]) > 0 {
				origins[d.path], used[deleted[k][0]] = deleted[k][0], true
				break
			}
		}
	}
	return origins
}
