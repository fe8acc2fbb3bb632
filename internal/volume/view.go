package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
)

// ErrNoVolume means that there is no volume at a root.
var ErrNoVolume = errors.New("no volume")

// ViewVolume opens the volume at root read-only. The returned Volume supports only ID, Root, Repos, Describe,
// Published, Locate, TreesAt, Usage, Total and Space. It fails with [ErrNoVolume] if there is no volume at
// root.
func ViewVolume(root string) (*Volume, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("view volume %s: %w", root, err)
	}
	id, err := os.ReadFile(filepath.Join(root, adminDir, idName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w at %s; set its folder with --root", ErrNoVolume, root)
	}
	if err != nil {
		return nil, disk.Error("view the volume", err)
	}
	return &Volume{root: root, id: strings.TrimSpace(string(id))}, nil
}

// Detail describes a repository on the volume.
type Detail struct {
	Usage
	Store  int    `json:"store"`  // generation of its store; 0 if there is none
	Remote string `json:"remote"` // remote that it is bound to
}

// Describe returns the details of a repository, or false if it is not on the volume. It needs no lease. Adopted clones
// that have not been measured have 0 bytes.
func (v *Volume) Describe(repo events.RepoPath) (Detail, bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err != nil {
		return Detail{}, false, err
	}
	d := Detail{Usage: v.Usage(repo), Remote: events.CanonicalRemote(b.Remote)}
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

// Published lists the commits at which a repository's names are published.
type Published struct {
	Commits map[events.Ref]string
	Trees   map[events.Ref]string        // names of the trees
	LFS     map[events.Ref]lfs.Selection // of the trees that have LFS files
	Changed map[events.Ref]time.Time     // when they were published
	Damaged map[events.Ref]bool          // refs whose published tree is marked as damaged, and so is not in Commits
	Plain   events.Ref                   // ref of the plain name; zero if there is no plain name
	Named   map[events.Ref]bool          // refs that have a name of their own, besides the plain name or without it
	Remote  string                       // remote as first given
	Fetched bool                         // whether anything was ever fetched from Remote
	Default events.Ref                   // ref whose syncs publish the plain name: the last default branch

	// of the trees that were asked for with submodules, also if they are damaged
	Submodules map[events.Ref]events.Submodules
	// trees to build again: without some submodule that may be available now, or from purged stores
	Incomplete map[events.Ref]bool
	Missing    map[events.Ref][]checkout.Part // submodules that are missing, sorted by path
}

// Published returns the published commits, or false if the repository is not on the volume or has moved away.
// It fails if the volume is not mounted. It needs no lease and reads only a few small files.
func (v *Volume) Published(repo events.RepoPath) (Published, bool, error) {
	f := v.folder(repo)
	b, bound, err := f.readBinding()
	if err == nil && !bound {
		err = v.checkMounted()
	}
	if err != nil || !bound {
		return Published{}, false, err
	}
	links, err := v.ownLinks(f, b)
	if err != nil {
		return Published{}, false, err
	}
	p := Published{
		Commits: map[events.Ref]string{}, Trees: map[events.Ref]string{}, Named: map[events.Ref]bool{},
		LFS: map[events.Ref]lfs.Selection{}, Changed: map[events.Ref]time.Time{},
		Damaged: map[events.Ref]bool{}, Remote: b.Remote,
		Submodules: map[events.Ref]events.Submodules{}, Incomplete: map[events.Ref]bool{},
		Missing: map[events.Ref][]checkout.Part{},
	}
	// The plain name sorts first, so going backward it overrides the others.
	for _, path := range slices.Backward(slices.Sorted(maps.Keys(links))) {
		name, commit, ok := checkout.RefAndCommit(f.tree(links[path]))
		if ref, err := events.ParseRef(name); ok && err == nil {
			p.Commits[ref], p.Trees[ref], p.Changed[ref] = commit, links[path], publishedAt(path)
			p.Named[ref] = p.Named[ref] || path != v.publishedPath(b.Repo.String())
			delete(p.LFS, ref)
			if selection := lfsOf(f.tree(links[path])); len(selection) > 0 {
				p.LFS[ref] = selection
			}
			p.noteParts(ref, f.tree(links[path]))
			if f.isPurged(links[path]) {
				p.Incomplete[ref] = true
			}
		} else if g := checkout.GitDirOf(f.tree(links[path])); !ok && g.IsMarked() {
			if ref, err := builtFor(g); err == nil {
				p.Damaged[ref] = true
				if p.Commits[ref] == "" {
					p.noteParts(ref, f.tree(links[path]))
				}
			}
		}
	}
	if p.Fetched = len(p.Commits) > 0; !p.Fetched {
		if p.Fetched, err = v.isUsed(f, b); err != nil {
			return Published{}, false, err
		}
	}
	if ref, err := events.ParseRef(v.current(f, b, b.Repo.String()).ref); err == nil {
		p.Plain = ref
	}
	p.Default = b.Default
	return p, true, nil
}

// adoptedNow lists the adopted clones, with sizes from the last measurement.
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
