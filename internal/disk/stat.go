package disk

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Stat returns the operating system's description of a file.
func Stat(info fs.FileInfo) (*syscall.Stat_t, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: no stat information", info.Name())
	}
	return st, nil
}

// Inode identifies a file by its device and inode number.
type Inode struct{ Dev, Ino uint64 }
