package fsck

import (
	"bufio"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// verified is a checked store with the IDs of its objects.
type verified struct {
	*object.Store
	has map[object.ID]struct{}
}

// checkStore inflates and hashes every object in a store, and checks that its refs are complete. The caller
// closes the store.
func (c *Checker) checkStore(dir string) (o *verified, sound bool, err error) {
	before := c.Report().Found
	o = &verified{object.Open(dir), map[object.ID]struct{}{}}
	err = c.checkObjects(filepath.Join(dir, "objects"), o)
	if err == nil {
		err = c.checkRefs(dir, o)
	}
	if err != nil {
		o.Close()
		return nil, false, err
	}
	c.report.Objects += int64(len(o.has))
	return o, c.Report().Found == before, nil
}

func (c *Checker) checkObjects(dir string, o *verified) error {
	loose, err := disk.Glob(dir, "??/*")
	if err != nil {
		return disk.Error("list the store's objects", err)
	}
	packs, err := disk.Glob(dir, "pack/*.pack")
	if err != nil {
		return disk.Error("list the store's objects", err)
	}
	g, ctx := errgroup.WithContext(c.ctx)
	g.SetLimit(readers())
	for _, path := range loose {
		name := filepath.Base(filepath.Dir(path)) + filepath.Base(path)
		if !object.IsID(name) {
			continue
		}
		h := object.ParseID(name)
		o.has[h] = struct{}{}
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n, err := checkLoose(path, h)
			if err != nil {
				c.Found(path, "%v", err)
			}
			c.addBytes(n)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, path := range packs {
		if err := c.checkPack(path, o); c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		} else if err != nil {
			c.Found(path, "%v", err)
		}
	}
	return nil
}

// checkLoose inflates a loose object and compares its hash with its name.
func checkLoose(path string, h object.ID) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	inflated, err := zlib.NewReader(bufio.NewReader(file))
	if err != nil {
		return 0, fmt.Errorf("does not inflate: %w", err)
	}
	sum := h.Format().NewSum()
	n, err := io.Copy(sum, inflated)
	if err != nil {
		return n, fmt.Errorf("does not inflate: %w", err)
	}
	if object.IDOf(sum.Sum(nil)) != h {
		return n, errors.New("hash does not match its name")
	}
	return n, nil
}

// packShare is the number of objects per concurrent reader of a pack.
const packShare = 5000

// checkPack checks the checksums of a pack, and then every object in its index.
func (c *Checker) checkPack(path string, o *verified) (err error) {
	defer object.RecoverCorrupt(&err)
	pack, err := object.OpenPack(path)
	if err != nil {
		return err
	}
	defer pack.Close()
	size, err := pack.CheckSums(c.ctx)
	if err != nil {
		return err
	}
	c.addBytes(size)
	names, err := pack.IDs()
	if err != nil {
		return fmt.Errorf("cannot read its index: %w", err)
	}
	for _, name := range names {
		o.has[name] = struct{}{}
	}
	g, ctx := errgroup.WithContext(c.ctx)
	g.SetLimit(readers())
	for share := range slices.Chunk(names, packShare) {
		g.Go(func() error { return c.checkPacked(ctx, path, share) })
	}
	return g.Wait()
}

// checkPacked checks some of a pack's objects with its own reader.
func (c *Checker) checkPacked(ctx context.Context, path string, names []object.ID) error {
	pack, err := object.OpenPack(path)
	if err != nil {
		return err
	}
	defer pack.Close()
	check := func(name object.ID) (err error) {
		defer object.RecoverCorrupt(&err)
		return pack.Check(name)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := check(name); err != nil {
			c.Found(path, "object %s: %v", name, err)
		}
	}
	return nil
}

// checkRefs checks that the store's refs are complete, with their histories.
func (c *Checker) checkRefs(dir string, o *verified) error {
	path := filepath.Join(dir, "packed-refs")
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		c.Found(path, "%v", err)
		return nil
	}
	seen, shallow := map[object.ID]bool{}, object.ReadShallow(dir)
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		name, ref, ok := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case !ok || !object.IsID(name) || !strings.HasPrefix(ref, "refs/"):
			c.Found(path, "line is not a ref: %q", line)
		default:
			err := o.checkHistory(c.ctx, object.ParseID(name), shallow, seen)
			if err != nil && c.ctx.Err() == nil {
				c.Found(path, "%s is incomplete: %v", ref, err)
			}
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// checkHistory checks that a commit, its history down to the shallow commits, and their trees are complete.
// It adds the commits and folders to those seen, and skips these.
func (o *verified) checkHistory(
	ctx context.Context, tip object.ID, shallow []object.ID, seen map[object.ID]bool,
) (err error) {
	defer object.RecoverCorrupt(&err)
	isNew := func(h object.ID) bool {
		known := seen[h]
		seen[h] = true
		return !known
	}
	isThere := func(path string, entry object.TreeEntry) error {
		if _, ok := o.has[entry.Hash]; !ok && entry.Mode != filemode.Submodule {
			return fmt.Errorf("%q: object %s is missing", path, entry.Hash)
		}
		return nil
	}
	for todo := []object.ID{tip}; len(todo) > 0; {
		h := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !isNew(h) {
			continue
		}
		commit, err := o.CommitHeader(h)
		if err != nil {
			return fmt.Errorf("commit %s: %w", h, err)
		}
		if err := o.walk(ctx, commit.Tree, "", isNew, isThere); err != nil {
			return err
		}
		if !slices.Contains(shallow, h) {
			todo = append(todo, commit.Parents...)
		}
	}
	return nil
}

// walk calls visit for each file below a folder, with its path, except in folders that enter refuses.
func (o *verified) walk(
	ctx context.Context, folder object.ID, prefix string, enter func(object.ID) bool,
	visit func(path string, entry object.TreeEntry) error,
) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !enter(folder) {
		return nil
	}
	entries, err := o.Tree(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := prefix + entry.Name
		if entry.Mode == filemode.Dir {
			err = o.walk(ctx, entry.Hash, path+"/", enter, visit)
		} else {
			err = visit(path, entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
