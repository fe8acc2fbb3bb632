// Package fsck reads stores and trees back and checks them: each object hashes to its name,
// each ref's history is complete, each tree has its commit's files and no others.
//
// A [Checker] takes one store at a time, with the trees that read from it, and gathers a [Report]. It changes nothing;
// package volume decides what to check, holds the locks, and marks what is damaged. It hashes all that it reads.
//
// Damage is a [Problem] in the report. An error means that the check could not be completed.
package fsck

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
)

// Report is the result of a check.
type Report struct {
	Trees    int       `json:"trees"`
	Files    int64     `json:"files"`   // in trees; a file in two trees counts twice
	Objects  int64     `json:"objects"` // in stores
	Bytes    int64     `json:"bytes"`   // read
	Found    int       `json:"found"`   // problems
	Problems []Problem `json:"problems"`
	Marked   []string  `json:"marked,omitempty"` // trees and stores to be replaced, relative to the root
}

// Problem is one piece of damage.
type Problem struct {
	Path string `json:"path"` // relative to the root
	What string `json:"what"`
}

// maxProblems is the maximum number of problems listed in a report; Found counts them all.
const maxProblems = 100

// readers returns how many files are read concurrently.
func readers() int { return min(runtime.GOMAXPROCS(0), 8) }

// Checker checks stores and the trees that read from them, one store at a time.
type Checker struct {
	ctx      context.Context // of one check
	relative func(path string) string

	// PartStore returns the folder of a submodule's store. It must be set if trees have files of submodules.
	PartStore func(checkout.Part) string

	damagedTrees, damagedStores []string        // paths
	parts                       map[string]bool // stores of submodules by path: whether they are sound

	mu     sync.Mutex // guards the fields below
	report Report
	sums   map[disk.Inode]sums // of files that trees share
}

// New returns a Checker whose report names paths as relative returns them. Checks stop when ctx is done.
func New(ctx context.Context, relative func(path string) string) *Checker {
	return &Checker{ctx: ctx, relative: relative, parts: map[string]bool{}, sums: map[disk.Inode]sums{}}
}

// Report returns the results so far.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report
}

// Damaged returns the paths of the trees, stores, and stores of submodules that have problems.
func (c *Checker) Damaged() (trees, stores, parts []string) {
	for dir, sound := range c.parts {
		if !sound {
			parts = append(parts, dir)
		}
	}
	return c.damagedTrees, c.damagedStores, parts
}

// NoteDamagedTree records that a tree is damaged. The caller has reported why.
func (c *Checker) NoteDamagedTree(path string) { c.damagedTrees = append(c.damagedTrees, path) }

// Found reports a problem with path.
func (c *Checker) Found(path, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Found++
	if len(c.report.Problems) < maxProblems {
		c.report.Problems = append(c.report.Problems, Problem{c.relative(path), fmt.Sprintf(format, args...)})
	}
}

// addBytes counts bytes read.
func (c *Checker) addBytes(n int64) {
	c.mu.Lock()
	c.report.Bytes += n
	c.mu.Unlock()
}

// CheckStore checks the store at dir and the trees at the given paths that use it. An error means that the check could
// not be completed.
func (c *Checker) CheckStore(dir string, trees []string) error {
	objects, sound, err := c.checkStore(dir)
	if err != nil {
		return err
	}
	defer objects.Close()
	if !sound {
		c.damagedStores = append(c.damagedStores, dir)
	}
	return c.checkTrees(trees, func(tree string) error { return c.checkTree(tree, objects) })
}

// CheckSelections checks trees of selections: that their files are those of their manifests, and no others. objects
// has the pointers of files in LFS. An error means that the check could not be completed.
func (c *Checker) CheckSelections(trees []string, objects *object.Store) error {
	return c.checkTrees(trees, func(tree string) error { return c.checkSelection(tree, objects) })
}

// checkTrees checks trees and records which are damaged.
func (c *Checker) checkTrees(trees []string, check func(tree string) error) error {
	for _, tree := range trees {
		before := c.Report().Found
		if err := check(tree); err != nil {
			return err
		}
		c.report.Trees++
		if c.Report().Found > before {
			c.NoteDamagedTree(tree)
		}
	}
	return nil
}
