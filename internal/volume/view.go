package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// ErrNoVolume means that there is no volume at a root.
var ErrNoVolume = errors.New("there is no volume")

// ViewVolume opens the volume at root to look at it, and writes nothing. What it returns is for ID, Root,
// Repos, Describe, Published, Usage, Total and Space alone. It fails with [ErrNoVolume] where none was ever opened.
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
		return nil, disk.Error("look at the volume", err)
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
	d := Detail{Usage: f.readUsage(), Remote: events.CanonicalRemote(b.Remote)}
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

// Published is what names name at a moment.
type Published struct {
	Commits map[events.Ref]string
	Plain   events.Ref // what the plain name is published for; zero when there is no such name
	Remote  string     // that the repository is bound to, as it was first given
	Fetched bool       // whether anything ever came from there; else it was only asked, and may have known nothing
}

// Published says what names name now. It takes no lease and asks nobody, at the cost of reading a few small
// files. It is false when the repository is not on the volume, or has moved away.
func (v *Volume) Published(repo events.RepoPath) (Published, bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil || !bound {
		return Published{}, false, err
	}
	commits, err := v.publishedRefs(f, b)
	if err != nil {
		return Published{}, false, err
	}
	p := Published{Commits: commits, Remote: b.Remote}
	if p.Fetched = len(commits) > 0; !p.Fetched {
		if p.Fetched, err = v.isUsed(f, b); err != nil {
			return Published{}, false, err
		}
	}
	if ref, err := events.ParseRef(v.current(f, b, b.Repo.String()).ref); err == nil {
		p.Plain = ref
	}
	return p, true, nil
}

// publishedRefs returns the commits that names name, by ref.
func (v *Volume) publishedRefs(f folder, b binding) (map[events.Ref]string, error) {
	links, err := v.ownLinks(f, b)
	if err != nil {
		return nil, err
	}
	commits := map[events.Ref]string{}
	// The plain name comes last, being the shortest: it is the one that counts.
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(links))) {
		name, commit, ok := checkout.RefAndCommit(f.tree(links[path]))
		if ref, err := events.ParseRef(name); ok && err == nil {
			commits[ref] = commit
		}
	}
	return commits, nil
}

// adoptedNow lists the adopted clones there are, with the sizes known.
func (v *Volume) adoptedNow(f folder, measured []Adopted) ([]Adopted, error) {
	entries, err := disk.ReadDir(f.adopted())
	if err != nil {
		return nil, disk.Error("list adopted clones", err)
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
