package volume

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
)

// A plain clone at the path where its repository is to be published is adopted: a link is created and atomically
// exchanged for the clone, so readers of the name always see one or the other. The clone moves to adopted/{fence}
// with all its files, and stays there until an operator deletes it.

// adopted is the folder for adopted clones.
func (f folder) adopted() string { return filepath.Join(f.dir, "adopted") }

const maxConfigBytes = 1 << 20 // maximum size of a clone's .git/config

// checkClone refuses to replace a folder unless it is a clone that can be adopted.
func (v *Volume) checkClone(f folder, name, remote string) error {
	path := v.publishedPath(name)
	refuse := func(why string) error {
		return conflict("%s is a folder already%s; move it away (it is not touched) and sync again", path, why)
	}
	if strings.Contains(name, "@") {
		return refuse("")
	}
	if why := whyNotAdopted(path, remote); why != "" {
		return refuse(why)
	}
	return v.tryExchange(f, path)
}

// whyNotAdopted returns why a folder cannot be adopted, or "" if it is a clone of remote. It never quotes the clone's
// configuration, which may contain credentials, and executes nothing.
func whyNotAdopted(path, remote string) string {
	gitDir := filepath.Join(path, ".git")
	if info, err := os.Lstat(gitDir); err != nil || !info.IsDir() {
		return ", but not a clone with its own .git folder"
	}
	if info, err := os.Lstat(filepath.Join(gitDir, "HEAD")); err != nil || !info.Mode().IsRegular() {
		return ", but its .git folder has no HEAD"
	}
	origin, err := originOf(filepath.Join(gitDir, "config"))
	switch {
	case err != nil:
		return ", but its .git/config cannot be read"
	case origin == "":
		return ", but a clone without a remote origin"
	case events.CanonicalRemote(asURL(origin)) != events.CanonicalRemote(remote):
		return ", but a clone of another remote than " + events.CanonicalRemote(remote)
	}
	if worktrees, err := disk.ReadDir(filepath.Join(gitDir, "worktrees")); err != nil || len(worktrees) > 0 {
		return ", but a clone with worktrees, which adopting would break (see git worktree list)"
	}
	return ""
}

// originOf returns the URL of the remote "origin" in a Git configuration, or "".
func originOf(path string) (origin string, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("damaged")
		}
	}()
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) // path may be a pipe
	if err != nil {
		return "", err
	}
	defer file.Close()
	parsed := config.New()
	if err := config.NewDecoder(bufio.NewReader(io.LimitReader(file, maxConfigBytes))).Decode(parsed); err != nil {
		return "", err
	}
	urls := parsed.Section("remote").Subsection("origin").OptionAll("url")
	if len(urls) == 0 {
		return "", nil
	}
	return urls[0], nil // git fetches from the first URL
}

// asURL converts the SSH form "user@host:path" to a URL.
func asURL(remote string) string {
	host, path, ok := strings.Cut(remote, ":")
	if !ok || strings.Contains(remote, "://") || strings.Contains(host, "/") {
		return remote
	}
	return "ssh://" + host + "/" + path
}

// tryExchange fails permanently if the file system cannot exchange the clone at path for a link.
func (v *Volume) tryExchange(f folder, path string) error {
	dir, err := os.MkdirTemp(f.dir, "exchange"+disk.TempInfix+"*")
	if err != nil {
		return disk.Error("try to exchange two names", err)
	}
	defer os.RemoveAll(dir)
	link, folder := filepath.Join(dir, "link"), filepath.Join(dir, "folder")
	if err := errors.Join(os.Symlink("folder", link), os.Mkdir(folder, 0o755)); err != nil {
		return disk.Error("try to exchange two names", err)
	}
	return exchangeError(path, v.exchange(link, folder))
}

// exchange swaps two names atomically.
func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

func exchangeError(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return conflict("%s is a clone, but this file system cannot exchange it for a link atomically; "+
			"move it away while it has no readers (it is not touched) and sync again", path)
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		return conflict("%s is a clone on another file system; unmount it (it is not touched) and sync again", path)
	}
	return disk.Error("adopt "+path, err)
}

// adopt replaces a clone by a link and keeps the clone. The caller holds the file lock.
func (v *Volume) adopt(f folder, path, target string, fence uint64) error {
	attempt := "adopt " + path
	if err := os.MkdirAll(f.adopted(), 0o755); err != nil {
		return disk.Error(attempt, err)
	}
	if err := f.sweepAdopted(); err != nil {
		return err
	}
	beside, err := unusedPath(filepath.Join(f.adopted(), fmt.Sprint(fence)))
	if err != nil {
		return err
	}
	// The link is created where the clone will end up. Its relative target is valid at path.
	if err := os.Symlink(target, beside); err != nil {
		return disk.Error(attempt, err)
	}
	if err := disk.SyncDir(f.adopted()); err != nil {
		return disk.Error(attempt, err)
	}
	v.done("beside")
	if err := v.exchange(beside, path); err != nil {
		// A network file system may report failure although the exchange succeeded.
		if now, readErr := os.Readlink(path); readErr != nil || now != target {
			_ = os.Remove(beside)
			return exchangeError(path, err)
		}
	}
	v.done("exchanged")
	return disk.Error(attempt, errors.Join(disk.SyncDir(f.adopted()), disk.SyncDir(filepath.Dir(path))))
}

// sweepAdopted removes links that were never exchanged. The caller holds the file lock.
func (f folder) sweepAdopted() error {
	entries, err := disk.ReadDir(f.adopted())
	if err != nil {
		return disk.Error("sweep adopted clones", err)
	}
	for _, entry := range entries {
		if entry.Type() != os.ModeSymlink {
			continue
		}
		if err := os.Remove(filepath.Join(f.adopted(), entry.Name())); err != nil {
			return disk.Error("sweep adopted clones", err)
		}
	}
	return nil
}
