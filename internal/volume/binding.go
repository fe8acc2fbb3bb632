package volume

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"lockstep/events"
	"lockstep/internal/disk"
)

// binding ties a repository path to its remote while the repository is on the volume.
type binding struct {
	Repo    events.RepoPath `json:"repo"`              // as first spelled: the name published
	Remote  string          `json:"remote"`            // as first given
	Default events.Ref      `json:"default,omitempty"` // ref of the plain name

	// MovedAway describes a repository that has moved away from this path, until its files are gone.
	MovedAway *tombstone `json:"left,omitempty"`
}

// readBinding returns the repository's binding. ok is false if the repository is not on the volume; b may still have a
// tombstone.
func (f folder) readBinding() (b binding, ok bool, err error) {
	content, err := os.ReadFile(f.binding())
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return binding{}, false, nil
	}
	if err != nil {
		return binding{}, false, disk.Error("read the repository's binding", err)
	}
	if err := json.Unmarshal(content, &b); err != nil || b.Repo.IsZero() {
		return binding{}, false, events.Errorf(events.Permanent, events.ClassVolume,
			"%s is damaged: restore it, or delete it and sync again", f.binding())
	}
	return b, b.Remote != "", nil
}

func (f folder) writeBinding(b binding) error {
	content, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return disk.Error("write the repository's binding", disk.Replace(f.binding(), append(content, '\n')))
}

// bind returns repo's binding, creating it if necessary, and refuses a remote other than the bound one. It
// replaces a bound remote that nothing was ever fetched from, such as a mistyped one.
func (v *Volume) bind(
	ctx context.Context, f folder, repo events.RepoPath, remote string, fence uint64,
) (binding, error) {
	b, bound, err := v.checkBound(f, remote)
	if bound || err != nil {
		return b, err
	}
	if b.MovedAway != nil {
		repo = b.Repo // its names are still published
	}
	b = binding{Repo: repo, Remote: remote, MovedAway: b.MovedAway}
	// Under the volume's bind lock, only one of two conflicting paths is bound.
	unlock, err := lockFile(ctx, filepath.Join(v.root, adminDir, "bind.lock"))
	if err != nil {
		return binding{}, err
	}
	defer unlock()
	if err := v.checkNesting(b.Repo); err != nil {
		return binding{}, err
	}
	if err := v.checkName(f, b.Repo.String(), b.Remote); err != nil {
		return binding{}, err
	}
	return b, f.guarded(ctx, fence, func() error { return f.writeBinding(b) })
}

// checkBound returns a repository's binding, and whether it is to this remote. It refuses another remote that
// is in use.
func (v *Volume) checkBound(f folder, remote string) (b binding, bound bool, err error) {
	b, bound, err = f.readBinding()
	if !bound || err != nil {
		return b, false, err
	}
	conflict := b.check(remote)
	if conflict == nil {
		return b, true, nil
	}
	used, err := v.isUsed(f, b)
	if used && err == nil {
		err = conflict
	}
	return b, false, err
}

// isUsed reports whether anything was ever fetched from the bound remote.
func (v *Volume) isUsed(f folder, b binding) (bool, error) {
	generations, err := f.generations()
	if err != nil {
		return false, err
	}
	links, err := v.ownLinks(f, b)
	own := slices.DeleteFunc(generations, func(n int) bool { return n <= b.MovedAway.lastStore() })
	return len(own)+len(links) > 0, err
}

// check refuses a remote other than the bound one.
func (b binding) check(remote string) error {
	bound, requested := events.CanonicalRemote(b.Remote), events.CanonicalRemote(remote)
	switch {
	case bound == requested:
		return nil
	case strings.EqualFold(bound, requested):
		return conflict("%s is bound to %s on this volume; use the same case in the URL", b.Repo, bound)
	}
	return conflict("%s is %s on this volume, not %s; give the other repository another path", b.Repo, bound, requested)
}

// checkNesting refuses a path above or below a bound one: a file of one and the folder of the other would share a name.
func (v *Volume) checkNesting(repo events.RepoPath) error {
	refuse := func(other events.RepoPath) error {
		return conflict("%s conflicts with %s, which is already on this volume; give one of them another path", repo, other)
	}
	key := repo.Key()
	for end := strings.LastIndexByte(key, '/'); end > 0; end = strings.LastIndexByte(key[:end], '/') {
		above, err := events.ParseRepoPath(key[:end])
		if err != nil {
			break // an owner alone is not a repository path
		}
		switch b, ok, err := v.folder(above).readBinding(); {
		case ok || err != nil:
			return errors.Join(err, refuse(b.Repo))
		case b.MovedAway != nil:
			return events.Errorf(events.Retryable, events.ClassConflict,
				"%s conflicts with the name of %s, which has moved away and is kept for its readers until "+
					"its grace ends", repo, b.Repo)
		}
	}
	owner, rest, _ := strings.Cut(key, "/")
	siblings, err := os.ReadDir(filepath.Join(v.reposDir(), owner))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return disk.Error("list repositories below "+repo.String(), err)
	}
	prefix := strings.ReplaceAll(rest, "/", slashInName) + slashInName
	prefix = prefix[:min(len(prefix), maxFolderName-20)]
	for _, sibling := range siblings {
		if !strings.HasPrefix(sibling.Name(), prefix) {
			continue
		}
		b, ok, err := folder{filepath.Join(v.reposDir(), owner, sibling.Name())}.readBinding()
		if err != nil {
			return err
		}
		if ok && repo.Contains(b.Repo) {
			return refuse(b.Repo)
		}
	}
	return nil
}

// checkName refuses to publish a name that is taken by anything but our link or a clone of remote that can be adopted,
// or whose parent is not a plain folder.
func (v *Volume) checkName(f folder, name, remote string) error {
	if err := v.checkParents(name); err != nil {
		return err
	}
	path := v.publishedPath(name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return disk.Error("check "+path, err)
	case info.Mode()&os.ModeSymlink != 0 && v.linkedTree(f, path) != "":
		return nil
	case info.IsDir():
		return v.checkClone(f, name, remote)
	}
	return conflict("%s exists and was not published by Lockstep; move it away and sync again", path)
}

// checkParents refuses a name below a foreign symbolic link or file.
func (v *Volume) checkParents(name string) error {
	dir := v.root
	for segment := range strings.SplitSeq(filepath.ToSlash(filepath.Dir(name)), "/") {
		dir = filepath.Join(dir, segment)
		info, err := os.Lstat(dir)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return disk.Error("check "+dir, err)
		}
		if !info.IsDir() {
			return conflict("%s is not a folder; nothing can be published below it: move it away and sync again", dir)
		}
	}
	return nil
}

func conflict(format string, args ...any) error {
	return events.Errorf(events.Permanent, events.ClassConflict, format, args...)
}
