package checkout

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// checkEntryName refuses the names that a tree entry must not have: those that leave the folder they
// stand in, and those that some file system takes for .git, where a checkout could plant a hook.
func checkEntryName(name string, mode filemode.FileMode) error {
	switch {
	case name == "":
		return errors.New("an empty name")
	case name == "." || name == "..":
		return errors.New("a name that leaves its folder")
	case strings.ContainsAny(name, "/\\\x00"):
		return errors.New("a name with a separator or a NUL")
	case isDisguised(name, ".git", "git~1"):
		return errors.New("a name that some file systems take for .git")
	case mode == filemode.Symlink && isDisguised(name, ".gitmodules", "gitmod~1"):
		return errors.New("a symbolic link in the place of .gitmodules")
	case len(name) > maxEntryName:
		return errors.New("a name longer than file systems take")
	}
	return nil
}

const maxEntryName = 255 // bytes, NAME_MAX on Linux

// isDisguised reports whether some file system takes name for dotName: HFS+ ignores case and certain
// code points, NTFS ignores case, trailing dots and spaces, what follows a colon, and knows dotName
// by its short name too.
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
