package checkout

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path/filepath"
	"sort"
	"strings"

	"lockstep/internal/git/object"
)

// Select returns a plan of the items that a selection has, of those that [Plan.Items] returns. A submodule is
// selected as a whole, with its files. The plan's last tree must be of the same commit. The cost follows the
// number of names in the folders that the selection enters.
func (p *Plan) Select(items []Item, at Selection) (*Plan, error) {
	selected := *p
	selected.selection = []Item{}
	selected.add(items, "", at)
	selected.size = len(selected.selection)
	return &selected, at.Err()
}

// add adds the selected items of a folder, whose path is the prefix.
func (p *Plan) add(items []Item, prefix string, at Selection) {
	if at.IsSelected() {
		p.selection = append(p.selection, items...)
		return
	}
	for len(items) > 0 {
		name, _, isFolder := strings.Cut(items[0].path[len(prefix):], "/")
		n := 1
		if isFolder {
			end := prefix + name + "0" // the byte after the slash
			n = sort.Search(len(items), func(i int) bool { return items[i].path >= end })
		}
		switch below := at.Enter(name); {
		case below == nil:
		case below.IsSelected():
			p.selection = append(p.selection, items[:n]...)
		case isFolder && !p.filled[prefix+name]:
			p.add(items[:n], prefix+name+"/", below)
		}
		items = items[n:]
	}
}

// SelectionName returns the name for a selection whose filtered tree has this ID: see [SelectionOf]. That identifies
// the files if they are as their blobs say. Otherwise some may be files of Git LFS or of submodules, or links may
// have been omitted, and the name also has a text that is equal only for equal files.
func (p *Plan) SelectionName(id string) string {
	plain := p.selects == "" && p.last.links != LinksSkip
	for i := 0; plain && i < len(p.selection); i++ {
		plain = !p.selection[i].inPart
	}
	if plain {
		return id
	}
	sum := sha256.New()
	for _, it := range p.selection {
		_, _ = io.WriteString(sum, it.was.raw) // identifies the file on disk
	}
	return id + "-" + hex.EncodeToString(sum.Sum(nil)[:6])
}

// IsPlain reports whether the files of the tree are as their blobs say: see [Plan.SelectionName].
func (t *Tree) IsPlain() bool { return t.large == "" && t.links != LinksSkip && !t.parts.isFilled() }

// SelectionOf returns the part of the name of a tree that identifies the files of a selection, or "" if the
// tree is of a whole commit. Names are {number}-{selection}, which begins with the ID of the filtered tree,
// and {number}-{commit}, which is abbreviated.
func SelectionOf(tree string) string {
	_, name, _ := strings.Cut(filepath.Base(tree), "-")
	if id, _, _ := strings.Cut(name, "-"); object.IsID(id) {
		return name
	}
	return ""
}
