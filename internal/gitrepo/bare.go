package gitrepo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// makeBare makes a bare repository with as little in it as Git and go-git want.
func makeBare(dir string) error {
	for _, sub := range []string{"objects/pack", "objects/info", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.FromSlash(sub)), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n",
		"HEAD":   "ref: refs/heads/main\n",
	} {
		path := filepath.Join(dir, name)
		if info, err := os.Lstat(path); err == nil && info.Size() > 0 {
			continue
		}
		if err := replaceFile(path, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

func readShallow(gitDir string) (commits []plumbing.Hash) {
	content, err := os.ReadFile(filepath.Join(gitDir, "shallow"))
	if err != nil {
		return nil
	}
	for line := range strings.FieldsSeq(string(content)) {
		if plumbing.IsHash(line) {
			commits = append(commits, plumbing.NewHash(line))
		}
	}
	return commits
}

// writeShallow writes a Git folder's list of shallow commits. There is no such file when there is none:
// to Git an empty one is shallow, too.
func writeShallow(gitDir string, commits []plumbing.Hash) error {
	path := filepath.Join(gitDir, "shallow")
	if len(commits) == 0 {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return replaceUnsynced(path, shallowLines(commits))
}

func shallowLines(commits []plumbing.Hash) []byte {
	var lines bytes.Buffer
	for _, commit := range commits {
		fmt.Fprintln(&lines, commit)
	}
	return lines.Bytes()
}
