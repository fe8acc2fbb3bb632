package gitrepo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
)

// ErrNoVolume means that there is no volume at a root.
var ErrNoVolume = errors.New("there is no volume")

// ViewVolume opens the volume at root to look at it, and writes nothing. What it returns is for ID, Root,
// Repos, Describe, Usage, Total and Space alone. It fails with [ErrNoVolume] where none was ever opened.
func ViewVolume(root string) (*Volume, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("look at the volume %s: %w", root, err)
	}
	id, err := os.ReadFile(filepath.Join(root, adminDir, idName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s; name its folder with --root", ErrNoVolume, root)
	}
	if err != nil {
		return nil, volumeError("look at the volume", err)
	}
	return &Volume{root: root, id: strings.TrimSpace(string(id))}, nil
}

// Detail is what a repository has on the volume, for those who look at it.
type Detail struct {
	Usage
	Store  int    `json:"store"`  // generation of its store; 0 when there is none
	Remote string `json:"remote"` // that it is bound to
}

// Describe looks at one repository without a lease; false when it is not on the volume. An adopted clone
// that has not been measured yet has 0 bytes.
func (v *Volume) Describe(repo events.RepoPath) (Detail, bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil {
		return Detail{}, false, err
	}
	d := Detail{Usage: f.readUsage(), Remote: canonicalRemote(b.Remote)}
	if d.Adopted, err = v.adoptedNow(f, d.Adopted); err != nil || !bound && len(d.Adopted) == 0 {
		return Detail{}, false, err
	}
	if _, d.Trees, err = f.contents(); err != nil {
		return Detail{}, false, err
	}
	generations, err := f.generations()
	if len(generations) > 0 {
		d.Store = generations[len(generations)-1]
	}
	return d, true, err
}

// adoptedNow lists the adopted clones there are, with the sizes known.
func (v *Volume) adoptedNow(f folder, measured []Adopted) ([]Adopted, error) {
	entries, err := readDir(f.adopted())
	if err != nil {
		return nil, volumeError("list adopted clones", err)
	}
	var now []Adopted
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		clone := Adopted{Path: v.relative(filepath.Join(f.adopted(), entry.Name()))}
		for _, known := range measured {
			if known.Path == clone.Path {
				clone.Bytes = known.Bytes
			}
		}
		now = append(now, clone)
	}
	return now, nil
}
