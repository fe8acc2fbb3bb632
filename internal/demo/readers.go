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
	readerCount = 2
	readPause   = 2 * time.Millisecond // after each tree, to leave time for other work
)

// readTrees checks the published trees one after the other until ctx is done. It reads them like any program: it resolves the name
// once and reads files.
func (d *demo) readTrees(ctx context.Context) {
	for {
		for _, repo := range d.board.repos {
			err := d.readTree(repo.name)
			if d.board.readOne(err) {
				d.view.event("TORN: %s: %v", repo.name, err)
			}
			if !app.Sleep(ctx, readPause) {
				return
			}
		}
	}
}

// readTree returns an error unless the published tree has exactly the files of the push that made its commit.
func (d *demo) readTree(repo string) error {
	tree, commit, err := resolve(filepath.Join(d.root, repo))
	if err != nil {
		return err
	}
	number, ok := d.board.numberOf(repo, commit)
	if !ok {
		return fmt.Errorf("its commit %.12s was never pushed", commit)
	}
	want, files := fileText(repo, number), 0
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
	if err == nil && files != fileCount {
		err = errors.New("files are missing or unexpected")
	}
	return err
}

// resolve resolves a published name and returns its tree and commit.
func resolve(name string) (tree, commit string, err error) {
	if tree, err = filepath.EvalSymlinks(name); err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(filepath.Join(tree, ".git", "lockstep-commit"))
	return tree, strings.TrimSpace(string(text)), err
}
