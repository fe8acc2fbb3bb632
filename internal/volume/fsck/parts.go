package fsck

import (
	"os"
	"path/filepath"

	"lockstep/internal/git/checkout"
)

// partsOf returns the submodules of a tree, whose stores it checks. Then o reads these, too. It reports stores that are missing.
func (c *Checker) partsOf(tree string, o *verified) (checkout.Parts, error) {
	parts, err := checkout.GitDirOf(tree).Parts()
	if err != nil {
		c.Found(tree, "its .git does not say which submodules it has: %v", err)
		return checkout.Parts{}, nil
	}
	for _, part := range parts.List {
		if !part.IsFilled() {
			continue
		}
		dir := c.PartStore(part)
		if _, err := os.Lstat(filepath.Join(dir, "objects")); err != nil {
			c.Found(tree, "the store of its submodule %q is missing", part.Path)
			continue
		}
		sound, err := c.checkPart(dir)
		if err != nil {
			return checkout.Parts{}, err
		}
		if !sound {
			c.Found(tree, "the store of its submodule %q is damaged", part.Path)
		}
		o.Add(dir)
	}
	return parts, nil
}

// checkPart checks the store of a submodule, once.
func (c *Checker) checkPart(dir string) (sound bool, err error) {
	if sound, known := c.parts[dir]; known {
		return sound, nil
	}
	before := c.problems()
	objects, err := c.checkObjects(dir)
	if err != nil {
		return false, err
	}
	defer objects.Close()
	if err := c.checkRefs(dir, objects); err != nil {
		return false, err
	}
	c.parts[dir] = c.problems() == before
	return c.parts[dir], nil
}

// DamagedParts returns the paths of the stores of submodules that have problems.
func (c *Checker) DamagedParts() (stores []string) {
	for dir, sound := range c.parts {
		if !sound {
			stores = append(stores, dir)
		}
	}
	return stores
}
