package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/internal/app"
)

const (
	demoReaders   = 2
	demoReadPause = 2 * time.Millisecond // after each tree: they are not to be all there is to see
)

// Read checks the published trees, one after the other, until ctx is done. It reads them as any program may: it resolves
// the name once, and looks at nothing but files.
func (d *demo) Read(ctx context.Context) {
	for {
		for _, repo := range d.board.repos {
			err := d.readTree(repo.name)
			if d.board.readOne(err) {
				d.view.event("TORN: %s: %v", repo.name, err)
			}
			if !app.Sleep(ctx, demoReadPause) {
				return
			}
		}
	}
}

// readTree fails unless the published tree of a repository is whole: it has all files of one push and no
// others, and they are of the commit that it says.
func (d *demo) readTree(repo string) error {
	tree, commit, err := resolve(filepath.Join(d.root, repo))
	if err != nil {
		return err
	}
	number, ok := d.board.numberOf(repo, commit)
	if !ok {
		return fmt.Errorf("it is of commit %.12s, which nobody has pushed", commit)
	}
	want, files := demoText(repo, number), 0
	err = filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		if err == nil && string(text) != want {
			err = fmt.Errorf("%s is not of push %d: %.40q", entry.Name(), number, text)
		}
		return err
	})
	if err == nil && files != demoFiles {
		err = errors.New("it has not all of its files, or others")
	}
	return err
}

// resolve follows a published name to its tree, once, and says of which commit that is.
func resolve(name string) (tree, commit string, err error) {
	if tree, err = filepath.EvalSymlinks(name); err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(filepath.Join(tree, ".git", "lockstep-commit"))
	return tree, strings.TrimSpace(string(text)), err
}
