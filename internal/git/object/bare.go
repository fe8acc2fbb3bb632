package object

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lockstep/internal/disk"
)

// MakeBare creates a minimal bare repository for Git and go-git. It leaves existing files alone, and does not sync new ones.
func MakeBare(dir string) error {
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
		if err := disk.ReplaceUnsynced(path, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

// ReadShallow returns the shallow commits of a Git folder, whose parents it lacks.
func ReadShallow(gitDir string) (commits []ID) {
	content, err := os.ReadFile(filepath.Join(gitDir, "shallow"))
	if err != nil {
		return nil
	}
	for line := range strings.FieldsSeq(string(content)) {
		if IsID(line) {
			commits = append(commits, ParseID(line))
		}
	}
	return commits
}

// WriteShallow writes a Git folder's list of shallow commits. It removes the file if commits is empty, since Git
// considers a repository with an empty file shallow.
func WriteShallow(gitDir string, commits []ID) error {
	path := filepath.Join(gitDir, "shallow")
	if len(commits) == 0 {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return disk.ReplaceUnsynced(path, EncodeShallow(commits))
}

// EncodeShallow returns the content of a "shallow" file.
func EncodeShallow(commits []ID) []byte {
	var lines bytes.Buffer
	for _, commit := range commits {
		fmt.Fprintln(&lines, commit)
	}
	return lines.Bytes()
}
