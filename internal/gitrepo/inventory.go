package gitrepo

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
)

// inventory knows which objects some bare repositories hold, without opening any. Asking go-git
// costs several system calls per object, which for a tree of thousands of files is most of a sync.
type inventory struct {
	loose map[plumbing.Hash]bool
	packs []*idxfile.MemoryIndex
}

// takeInventory lists the loose objects and reads the indexes of the packs.
func takeInventory(gitDirs []string) (*inventory, error) {
	inv := &inventory{loose: map[plumbing.Hash]bool{}}
	for _, dir := range gitDirs {
		objects := filepath.Join(dir, "objects")
		groups, err := readDir(objects)
		if err != nil {
			return nil, err
		}
		for _, group := range groups {
			switch name := group.Name(); {
			case name == "pack":
				err = inv.addPacks(filepath.Join(objects, name))
			case len(name) == 2:
				err = inv.addLoose(filepath.Join(objects, name), name)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return inv, nil
}

func (inv *inventory) addLoose(dir, prefix string) error {
	names, err := readDir(dir)
	for _, name := range names {
		if hash := prefix + name.Name(); plumbing.IsHash(hash) {
			inv.loose[plumbing.NewHash(hash)] = true
		}
	}
	return err
}

func (inv *inventory) addPacks(dir string) error {
	names, err := readDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		base, ok := strings.CutSuffix(name.Name(), ".pack")
		if !ok {
			continue
		}
		index, err := readPackIndex(filepath.Join(dir, base+".idx"))
		if err != nil {
			return fmt.Errorf("index of %s: %w", base, err)
		}
		inv.packs = append(inv.packs, index)
	}
	return nil
}

func readPackIndex(path string) (*idxfile.MemoryIndex, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	index := idxfile.NewMemoryIndex()
	return index, idxfile.NewDecoder(bufio.NewReaderSize(file, 1<<16)).Decode(index)
}

// has reports whether an object is present.
func (inv *inventory) has(h plumbing.Hash) (bool, error) {
	if inv.loose[h] {
		return true, nil
	}
	for _, pack := range inv.packs {
		if ok, err := pack.Contains(h); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
