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

// MakeBare creates a minimal bare repository. It leaves existing files alone, and does not sync new ones.
func MakeBare(dir string, format Format) error {
	for _, sub := range []string{"objects/pack", "objects/info", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.FromSlash(sub)), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"config": format.Configure("[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n"),
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

// Configure returns the configuration of a repository of the format; config is that of a repository with SHA-1.
func (f Format) Configure(config string) string {
	if f == SHA1 {
		return config
	}
	return strings.Replace(config, "repositoryformatversion = 0", "repositoryformatversion = 1", 1) +
		"[extensions]\n\tobjectformat = " + f.String() + "\n"
}

// FormatOf returns the object format of a repository of [MakeBare]; ok is false if there is none.
func FormatOf(gitDir string) (format Format, ok bool) {
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err != nil {
		return SHA1, false
	}
	if strings.Contains(string(config), "objectformat = "+SHA256.String()) {
		return SHA256, true
	}
	return SHA1, true
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
