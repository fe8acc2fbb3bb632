package checkout

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

// writeFiles makes dir a folder with exactly these folders and files, by slash-separated relative path,
// parents first. The names in others it leaves as they are. It keeps and overwrites files that are there, and
// that no other folder shares: creating a file takes a file system much longer. It returns the files that are
// new or have another content, and the folders that are new or have new or removed names.
func writeFiles(
	dir string, folders []string, files map[string]string, others []string,
) (written, changed []string, err error) {
	names := map[string]bool{} // folders with new or removed names
	if err := removeOthers(dir, folders, files, others, names); err != nil {
		return nil, nil, err
	}
	for _, folder := range folders {
		switch err := os.Mkdir(filepath.Join(dir, filepath.FromSlash(folder)), 0o755); {
		case err == nil:
			names[folder], names[path.Dir(folder)] = true, true
		case !errors.Is(err, os.ErrExist):
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		was, err := os.ReadFile(file)
		if err == nil && string(was) == files[name] {
			continue
		}
		if errors.Is(err, os.ErrNotExist) {
			names[path.Dir(name)] = true
		}
		if err := overwrite(file, []byte(files[name])); err != nil {
			return nil, nil, err
		}
		written = append(written, name)
	}
	return written, slices.Sorted(maps.Keys(names)), nil
}

// removeOthers removes from dir what has other names or types, or is shared. It notes the folders in names.
func removeOthers(dir string, folders []string, files map[string]string, others []string, names map[string]bool) error {
	return filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist) && at == dir:
			return nil
		case err != nil:
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		_, isFile := files[name]
		switch {
		case entry.IsDir() && slices.Contains(folders, name), slices.Contains(others, name):
			return nil
		case isFile && entry.Type().IsRegular():
			var st unix.Stat_t
			if err := unix.Lstat(at, &st); err != nil {
				return &os.PathError{Op: "stat", Path: at, Err: err}
			}
			if st.Nlink == 1 {
				return nil
			}
		}
		names[path.Dir(name)] = true
		if err := os.RemoveAll(at); err != nil {
			return err
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// overwrite writes a file without emptying it first, after which ext4 would begin to write it to disk.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, permRegular)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if err := file.Truncate(int64(len(content))); err != nil {
		return err
	}
	return file.Close()
}

// isPair reports whether two paths are the only names of one regular file.
func isPair(a, b string) bool {
	var first, second unix.Stat_t
	return unix.Lstat(a, &first) == nil && unix.Lstat(b, &second) == nil && first.Mode&unix.S_IFMT == unix.S_IFREG &&
		first.Nlink == 2 &&
		disk.Inode{Dev: first.Dev, Ino: first.Ino} == disk.Inode{Dev: second.Dev, Ino: second.Ino}
}
