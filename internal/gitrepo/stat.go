package gitrepo

import (
	"fmt"
	"io/fs"
	"syscall"
)

func statOf(info fs.FileInfo) (*syscall.Stat_t, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: the system says too little of it", info.Name())
	}
	return st, nil
}

type inode struct{ dev, ino uint64 }
