package checkout

import (
	"errors"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// checkEntryName rejects names that leave their folder, and names that Git on Linux refuses to check out because NTFS
// considers them equal to .git, where a checkout could plant a hook. A backslash is an ordinary character, except
// before such a name.
func checkEntryName(name string, mode filemode.FileMode) error {
	switch {
	case name == "":
		return errors.New("an empty name")
	case name == "." || name == "..":
		return errors.New("a name that leaves its folder")
	case strings.ContainsAny(name, "/\x00"):
		return errors.New("a name with a slash or a NUL")
	case len(name) > maxEntryName:
		return errors.New("a name that is too long for a file system")
	}
	for rest, at := name, 0; ; { // NTFS separates names by backslashes, except at the start
		if isDotGit(rest) {
			return errors.New("a name that is .git on NTFS")
		}
		if mode == filemode.Symlink && isDotGitmodules(rest) {
			return errors.New("a symbolic link named .gitmodules")
		}
		next := strings.IndexByte(name[at+1:], '\\')
		if next < 0 {
			return nil
		}
		at += 1 + next
		rest = name[at+1:]
	}
}

const maxEntryName = 255 // bytes, NAME_MAX on Linux

// isDotGit reports whether path begins with a name that is .git on NTFS: is_ntfs_dotgit of Git.
func isDotGit(path string) bool {
	name, _, _ := strings.Cut(path, `\`)
	name, _, _ = strings.Cut(name, ":")
	name = strings.TrimRight(name, ". ")
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, "git~1")
}

// isDotGitmodules reports whether name is .gitmodules on NTFS: is_ntfs_dotgitmodules of Git.
func isDotGitmodules(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	name = strings.TrimRight(strings.ToLower(name), ". ")
	if name == ".gitmodules" {
		return true
	}
	if n, ok := strings.CutPrefix(name, "gitmod~"); ok { // the first short names
		return len(n) == 1 && '1' <= n[0] && n[0] <= '4'
	}
	// Later short names have up to six characters of a hash, then a number; eight characters in all.
	hashed, n, ok := strings.Cut(name, "~")
	return ok && len(name) == 8 && strings.HasPrefix("gi7eba", hashed) && n[0] != '0' &&
		strings.Trim(n, "0123456789") == ""
}
