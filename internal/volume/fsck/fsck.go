package fsck

import (
	"context"
	"fmt"
	"sync"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
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
	hashes map[disk.Inode]object.ID // of shared files
	large  map[disk.Inode]lfs.OID   // of files in LFS
}

// New returns a Checker whose report names paths as relative returns them. Checks stop when ctx is done.
func New(ctx context.Context, relative func(path string) string) *Checker {
	return &Checker{
		ctx: ctx, relative: relative, parts: map[string]bool{}, hashes: map[disk.Inode]object.ID{}, large: map[disk.Inode]lfs.OID{},
	}
}

// Report returns the results so far.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report
}

// Damaged returns the paths of the trees and stores that have problems.
func (c *Checker) Damaged() (trees, stores []string) { return c.damagedTrees, c.damagedStores }

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

func (c *Checker) problems() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report.Found
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
	before := c.problems()
	objects, err := c.checkObjects(dir)
	if err != nil {
		return err
	}
	defer objects.Close()
	if err := c.checkRefs(dir, objects); err != nil {
		return err
	}
	if c.problems() > before {
		c.damagedStores = append(c.damagedStores, dir)
	}
	for _, tree := range trees {
		before := c.problems()
		if err := c.checkTree(tree, objects); err != nil {
			return err
		}
		c.report.Trees++
		if c.problems() > before {
			c.NoteDamagedTree(tree)
		}
	}
	return nil
}
