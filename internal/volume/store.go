package volume

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// store is a repository's bare object database. Its refs name the commits that are complete, with as much history as
// was requested. They are in packed-refs only, so they change atomically and a branch "a/b" can replace a branch "a".
// Git can read the store; only this package may write to it.
type store struct{ dir string }

// currentStore returns the newest store generation that has refs, ignoring those of a repository that has
// moved away, if any. A damaged store is replaced by the next generation; trees keep using the store that
// they were built from.
func (f folder) currentStore(movedAway *tombstone) (store, error) {
	generations, err := f.generations()
	if err != nil {
		return store{}, err
	}
	last := movedAway.lastStore()
	for _, n := range slices.Backward(generations) {
		if s := f.generation(n); n > last && s.isBegun() && !s.isPurged() {
			return s, nil
		}
	}
	return f.generation(last + 1), nil
}

// nextStore returns a store with an unused, higher generation.
func (f folder) nextStore(movedAway *tombstone) (store, error) {
	generations, err := f.generations()
	return f.generation(slices.Max(append(generations, movedAway.lastStore())) + 1), err
}

func (f folder) generation(n int) store { return store{filepath.Join(f.stores(), strconv.Itoa(n))} }

// number is the store's generation.
func (s store) number() int {
	n, err := strconv.Atoi(filepath.Base(s.dir))
	if err != nil {
		return 0
	}
	return n
}

// generations lists the store generations, oldest first.
func (f folder) generations() ([]int, error) {
	entries, err := disk.ReadDir(f.stores())
	if err != nil {
		return nil, disk.Error("list the stores", err)
	}
	var generations []int
	for _, entry := range entries {
		if n, err := strconv.Atoi(entry.Name()); err == nil && n > 0 {
			generations = append(generations, n)
		}
	}
	slices.Sort(generations)
	return generations, nil
}

// isBegun reports whether the store has refs.
func (s store) isBegun() bool {
	_, err := os.Lstat(filepath.Join(s.dir, "packed-refs"))
	return err == nil
}

// hasOtherFormat reports whether the store exists with another object format than that of an object.
func (s store) hasOtherFormat(h object.ID) bool {
	format, ok := object.FormatOf(s.dir)
	return ok && format != h.Format()
}

// commitsDir is the prefix, in packed-refs, of a ref that is a commit: Git requires "refs/".
const commitsDir = "refs/lockstep/commits/"

// refs returns the store's complete commits by ref. A missing store has none.
func (s store) refs() (map[string]object.ID, error) {
	refs := map[string]object.ID{}
	content, err := os.ReadFile(filepath.Join(s.dir, "packed-refs"))
	if errors.Is(err, os.ErrNotExist) {
		return refs, nil
	}
	if err != nil {
		return nil, disk.Error("read the store's refs", err)
	}
	for line := range strings.Lines(string(content)) {
		hash, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && object.IsID(hash) && strings.HasPrefix(name, "refs/") {
			if commit, ok := strings.CutPrefix(name, commitsDir); ok && object.IsID(commit) {
				name = commit
			}
			refs[name] = object.ParseID(hash)
		}
	}
	return refs, nil
}

// hold records that the store has a ref's commit at a depth, and the store's shallow commits. It does not sync to disk:
// data lost in a power failure is fetched again. The caller holds the file lock.
func (s store) hold(ref events.Ref, commit object.ID, depth events.Depth, shallow []object.ID) error {
	refs, err := s.refs()
	if err != nil {
		return err
	}
	if refs[ref.String()] == commit && s.depth() == depth && slices.Equal(s.shallow(), shallow) {
		return nil
	}
	refs[ref.String()] = commit
	// Git must see which parents are missing before it sees the refs.
	if err := object.WriteShallow(s.dir, shallow); err != nil {
		return disk.Error("write the store's shallow list", err)
	}
	if s.depth() != depth {
		if err := disk.ReplaceUnsynced(filepath.Join(s.dir, depthName), []byte(depth.String()+"\n")); err != nil {
			return disk.Error("write the store's depth", err)
		}
	}
	return s.writeRefs(refs)
}

func (s store) writeRefs(refs map[string]object.ID) error {
	var packed bytes.Buffer
	packed.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	lines := map[string]object.ID{}
	for name, commit := range refs {
		if object.IsID(name) {
			name = commitsDir + name
		}
		lines[name] = commit
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&packed, "%s %s\n", lines[name], name)
	}
	return disk.Error("write the store's refs", disk.ReplaceUnsynced(filepath.Join(s.dir, "packed-refs"), packed.Bytes()))
}

const depthName = "lockstep-depth" // file in a store

// beginNext creates an empty store of the next generation, into which the next sync fetches everything at
// this depth or a greater one.
func (f folder) beginNext(movedAway *tombstone, depth events.Depth, format object.Format) error {
	s, err := f.nextStore(movedAway)
	if err != nil {
		return err
	}
	err = object.MakeBare(s.dir, format)
	if err == nil && depth != 0 {
		err = disk.Replace(filepath.Join(s.dir, depthName), []byte(depth.String()+"\n"))
	}
	if err == nil {
		err = disk.Replace(filepath.Join(s.dir, "packed-refs"), nil)
	}
	return disk.Error("create the next store", err)
}

// depth returns the greatest depth requested so far.
func (s store) depth() events.Depth {
	return events.Depth(checkout.ReadDepth(filepath.Join(s.dir, depthName)))
}

// shallow returns the commits whose parents are missing.
func (s store) shallow() []object.ID { return object.ReadShallow(s.dir) }

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
