package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"lockstep/internal/disk"
)

// sampled is the number of object folders, of 256, read to estimate the loose objects; "git gc --auto" reads one.
const sampled = 16

// refetchMark is a file in a store that requests a full fetch into the next store.
const refetchMark = "fetch-afresh"

func (s store) needsRefetch() bool {
	_, err := os.Lstat(filepath.Join(s.dir, refetchMark))
	return err == nil
}

// needsPrune reports whether pruning the store is likely worthwhile. Counting loose objects takes the longer
// the more there are, so a sync counts them only if it has looked at all trees, too.
func (s store) needsPrune(countLoose bool) bool {
	packs, err := s.packs()
	if err != nil {
		return false
	}
	last := struct { // after the last pruning; zero if there was none
		loose, packed int64 // bytes on disk
		packs         int
	}{}
	if content, err := os.ReadFile(filepath.Join(s.dir, prunedName)); err == nil {
		_, _ = fmt.Sscan(string(content), &last.loose, &last.packed, &last.packs)
	}
	largest := int64(0)
	for i := range packs {
		largest = max(largest, space(packs[i:i+1]))
	}
	if space(packs) > 2*max(last.packed, largest)+minLoose || len(packs) > max(maxPacks, 2*last.packs) {
		return true
	}
	return countLoose && s.looseSpace() > max(looseLimit(packs), 2*last.loose)
}

// looseSpace estimates the disk usage of loose objects from some of their folders; 0 if they cannot be read.
func (s store) looseSpace() (bytes int64) {
	for i := range sampled {
		names, err := disk.ReadDir(filepath.Join(s.dir, "objects", fmt.Sprintf("%x7", i)))
		if err != nil {
			return 0
		}
		bytes += space(names)
	}
	return bytes * 256 / sampled
}

// prunedName is a file that describes a store after its last pruning. It only affects when to prune again.
const prunedName = "lockstep-pruned"

// packs lists the packs, without their indexes.
func (s store) packs() ([]os.DirEntry, error) {
	names, err := disk.ReadDir(filepath.Join(s.dir, "objects", "pack"))
	return slices.DeleteFunc(names, func(e os.DirEntry) bool { return filepath.Ext(e.Name()) != ".pack" }), err
}

func looseLimit(packs []os.DirEntry) int64 { return max(space(packs)/2, minLoose) }

// space returns the disk usage of files.
func space(names []os.DirEntry) (bytes int64) {
	for _, name := range names {
		info, err := name.Info()
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += st.Blocks * 512
		}
	}
	return bytes
}
