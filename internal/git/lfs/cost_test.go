package lfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// wide is a repository of trees and blobs with any IDs.
type wide struct {
	trees map[object.ID][]object.TreeEntry
	blobs map[object.ID]string
}

func wideID(n int) object.ID {
	var raw [20]byte
	binary.BigEndian.PutUint64(raw[:], uint64(n)+1)
	return object.IDOf(raw[:])
}

func (w wide) Tree(id object.ID) ([]object.TreeEntry, error) { return w.trees[id], nil }

func (w wide) SmallBlob(id object.ID, limit int64) ([]byte, bool, error) {
	return []byte(w.blobs[id]), int64(len(w.blobs[id])) <= limit, nil
}

// TestManyFoldersInOne takes minutes if each is searched for among the others.
func TestManyFoldersInOne(t *testing.T) {
	t.Parallel()
	const n = 200_000
	top, below := make([]object.TreeEntry, n), []object.TreeEntry{{Name: "a", Mode: filemode.Regular, Hash: wideID(1)}}
	for i := range n {
		top[i] = object.TreeEntry{Name: fmt.Sprintf("%08d", i), Mode: filemode.Dir, Hash: wideID(2)}
	}
	w := wide{trees: map[object.ID][]object.TreeEntry{wideID(0): top, wideID(2): below}}
	files := NewForest(w, map[string]object.ID{"": wideID(0)}, Selection{{}})
	began := time.Now()
	for _, e := range top {
		if _, err := files.Selects(e.Name + "/a"); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestHostileAttributesAreRefused has attributes that take long for each file without a pattern that does.
func TestHostileAttributesAreRefused(t *testing.T) {
	t.Parallel()
	var macros strings.Builder
	for next, m := 0, 0; macros.Len() < maxAttributes-2*maxLine; m++ {
		line := fmt.Sprintf("[attr]a%x", m)
		for len(line) < maxLine-20 {
			next++
			line += fmt.Sprintf(" a%x", next)
		}
		macros.WriteString(line + "\n")
	}
	macros.WriteString("* a0\n")
	for name, content := range map[string]string{"macros": macros.String(), "comments": strings.Repeat("#\n", maxAttributes/2)} {
		attributes := object.TreeEntry{Name: attributesName, Mode: filemode.Regular, Hash: wideID(1)}
		w := wide{map[object.ID][]object.TreeEntry{}, map[object.ID]string{wideID(1): content}}
		w.trees[wideID(2)] = []object.TreeEntry{attributes}
		for i := range 1000 {
			w.trees[wideID(0)] = append(w.trees[wideID(0)], object.TreeEntry{Name: fmt.Sprint(i), Mode: filemode.Dir, Hash: wideID(2)})
		}
		if name == "macros" {
			w.trees[wideID(0)] = append(w.trees[wideID(0)], attributes)
			w.trees[wideID(2)] = nil
		}
		files := NewForest(w, map[string]object.ID{"": wideID(0)}, Selection{{}})
		var err error
		for i := range 1000 {
			if _, err = files.Selects(fmt.Sprint(i, "/a")); err != nil {
				break
			}
		}
		if !errors.Is(err, errTooComplex) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestManyFilesAndPatterns has as many as repositories of games have.
func TestManyFilesAndPatterns(t *testing.T) {
	t.Parallel()
	var attributes strings.Builder
	for i := range 100 {
		fmt.Fprintf(&attributes, "*.ext%d filter=lfs diff=lfs merge=lfs -text\n", i)
	}
	w := wide{
		map[object.ID][]object.TreeEntry{wideID(0): {{Name: attributesName, Mode: filemode.Regular, Hash: wideID(1)}}},
		map[object.ID]string{wideID(1): attributes.String()},
	}
	files := NewForest(w, map[string]object.ID{"": wideID(0)}, Selection{{}})
	for i := range 150_000 {
		if selected, err := files.Selects(fmt.Sprintf("source_file_%08d.c", i)); err != nil || selected {
			t.Fatalf("file %d: %v, %v", i, selected, err)
		}
	}
	if selected, err := files.Selects("a.ext0"); err != nil || !selected {
		t.Error(selected, err)
	}
}
