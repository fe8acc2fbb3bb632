package volume

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"lockstep/internal/disk"
)

// sampled is the number of object folders, of 256, read to estimate the loose objects; "git gc --auto" reads one.
const sampled = 16

// countedLoose is how many bytes of loose objects, 1/16 of which are read, a sync counts on average.
const countedLoose = minLoose / 4

// refetchMark is a file in a store that requests a full fetch into the next store.
const refetchMark = "fetch-afresh"

func (s store) needsRefetch() bool {
	_, err := os.Lstat(filepath.Join(s.dir, refetchMark))
	return err == nil
}

// needsPrune reports whether pruning the store is likely worthwhile. The more objects were kept by the last pruning, the less often it
// counts them, as the more syncs it takes until they have doubled: a sync counts a few on average.
func (s store) needsPrune() bool {
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
	if rand.Int64N(max(last.loose, countedLoose)) >= countedLoose {
		return false
	}
	loose := int64(0)
	for i := range sampled {
		names, err := disk.ReadDir(filepath.Join(s.dir, "objects", fmt.Sprintf("%x7", i)))
		if err != nil {
			return false
		}
		loose += space(names)
	}
	return loose*256/sampled > max(looseLimit(packs), 2*last.loose)
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
