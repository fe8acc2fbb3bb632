package checkout

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// checkEntryName rejects names that leave their folder, and names that some file system considers equal to .git,
// where a checkout could plant a hook.
func checkEntryName(name string, mode filemode.FileMode) error {
	switch {
	case name == "":
		return errors.New("an empty name")
	case name == "." || name == "..":
		return errors.New("a name that leaves its folder")
	case strings.ContainsAny(name, "/\\\x00"):
		return errors.New("a name with a separator or a NUL")
	case isDisguised(name, ".git", "git~1"):
		return errors.New("a name that is .git on some file systems")
	case mode == filemode.Symlink && isDisguised(name, ".gitmodules", "gitmod~1"):
		return errors.New("a symbolic link named .gitmodules")
	case len(name) > maxEntryName:
		return errors.New("a name that is too long for a file system")
	}
	return nil
}

const maxEntryName = 255 // bytes, NAME_MAX on Linux

// isDisguised reports whether name equals dotName on some file system: HFS+ ignores case and certain code points;
// NTFS ignores case, trailing dots and spaces and everything from a colon, and has a short name for dotName.
func isDisguised(name, dotName, shortName string) bool {
	plain := strings.ToLower(strings.Map(dropIgnorable, name))
	if plain == dotName {
		return true
	}
	ntfs, _, _ := strings.Cut(strings.ToLower(name), ":")
	ntfs = strings.TrimRight(ntfs, ". ")
	return ntfs == dotName || ntfs == shortName
}

// dropIgnorable drops the code points that HFS+ ignores in names.
func dropIgnorable(r rune) rune {
	switch {
	case r == utf8.RuneError:
		return r
	case 0x200c <= r && r <= 0x200f, 0x202a <= r && r <= 0x202e, 0x206a <= r && r <= 0x206f, r == 0xfeff:
		return -1
	}
	return r
}
