package disk

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Stat returns what the system knows about a file.
func Stat(info fs.FileInfo) (*syscall.Stat_t, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: the system says too little of it", info.Name())
	}
	return st, nil
}

// Inode identifies a file by its device and inode number.
type Inode struct{ Dev, Ino uint64 }
