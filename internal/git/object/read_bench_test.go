package object

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/testenv"
)

// BenchmarkRead reads a commit, all of its trees and all of its blobs: from a pack with deltas, and from loose objects.
func BenchmarkRead(b *testing.B) {
	for name, arrange := range map[string]func(gitRepo){
		"packed": func(h gitRepo) { h.git("", "repack", "-adfq", "--depth=20", "--window=10") },
		"loose": func(h gitRepo) {
			packs, _ := filepath.Glob(filepath.Join(h.dir, "objects", "pack", "*.pack"))
			for i, pack := range packs {
				moved := filepath.Join(h.dir, fmt.Sprint("moved-", i))
				testenv.Must(0, os.Rename(pack, moved))(h.t)
				content := testenv.Must(os.ReadFile(moved))(h.t)
				h.git(string(content), "unpack-objects", "-q")
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			h, _ := newLargeRepo(b)
			tip := ParseID(h.git("", "rev-parse", "main"))
			arrange(h)
			for b.Loop() {
				readAll(b, h.dir, tip)
			}
		})
	}
}

// readAll reads all objects of a commit, as a first checkout does.
func readAll(b *testing.B, dir string, tip ID) {
	o := Open(dir)
	defer o.Close()
	commit, err := o.Commit(tip)
	if err != nil {
		b.Fatal(err)
	}
	seen := map[ID]bool{}
	var walk func(tree ID)
	walk = func(tree ID) {
		entries, err := o.Tree(tree)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range entries {
			if seen[e.Hash] {
				continue
			}
			seen[e.Hash] = true
			if e.Mode == filemode.Dir {
				walk(e.Hash)
			} else if err := o.CopyBlob(io.Discard, e.Hash); err != nil {
				b.Fatal(err)
			}
		}
	}
	walk(commit.TreeHash)
}
