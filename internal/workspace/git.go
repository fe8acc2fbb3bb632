package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/volume"
)

// idFile is a file in the .git of each workspace, with its ID.
const idFile = "lockstep-workspace"

// gitFiles returns the files in the .git of a workspace that differ from those of the tree, by their path in it.
func gitFiles(tree string, ref events.Ref, commit, id string) (map[string]string, error) {
	git := checkout.GitDirOf(tree)
	config, err := os.ReadFile(filepath.Join(git.Dir, "config"))
	if err != nil {
		return nil, err
	}
	store, err := git.Store()
	if err != nil {
		return nil, err
	}
	remote, err := volume.RemoteOf(tree)
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(filepath.Join(git.Dir, "shallow"))
	files := map[string]string{
		"config":                  string(config) + remoteConfig(remote, ref, err == nil),
		"objects/info/alternates": alternate(filepath.Join(store, "objects")) + "\n",
		idFile:                    id + "\n",
	}
	if branch, ok := strings.CutPrefix(ref.String(), "refs/heads/"); ok {
		files["packed-refs"] = fmt.Sprintf("# pack-refs with: peeled fully-peeled sorted \n%s refs/heads/%s\n%s refs/remotes/origin/%s\n",
			commit, branch, commit, branch)
	}
	return files, nil
}

// remoteConfig returns the part of Git's configuration that a workspace has besides that of its tree. A shallow one fetches only
// its own ref by default, as clones with --depth do.
//
// The refs of the store are no alternate refs: a shallow store has commits without their parents, which Git must not rely on.
func remoteConfig(url string, ref events.Ref, shallow bool) string {
	var b strings.Builder
	b.WriteString("[core]\n\tlogallrefupdates = true\n\talternateRefsPrefixes = refs/lockstep-none/\n")
	if url == "" {
		return b.String()
	}
	branch, isBranch := strings.CutPrefix(ref.String(), "refs/heads/")
	fetch := "+refs/heads/*:refs/remotes/origin/*"
	switch {
	case shallow && isBranch:
		fetch = "+" + ref.String() + ":refs/remotes/origin/" + branch
	case shallow && ref.Commit() == "":
		fetch = "+" + ref.String() + ":" + ref.String()
	case shallow:
		fetch = ""
	}
	fmt.Fprintf(&b, "[remote \"origin\"]\n\turl = %s\n", configValue(url))
	if fetch != "" {
		fmt.Fprintf(&b, "\tfetch = %s\n", configValue(fetch))
	}
	if isBranch {
		fmt.Fprintf(&b, "[branch %s]\n\tremote = origin\n\tmerge = %s\n", configValue(branch), configValue(ref.String()))
	}
	return b.String()
}

// configValue quotes a value for Git's configuration.
func configValue(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}

// alternate quotes an absolute path for objects/info/alternates, which has one per line.
func alternate(path string) string {
	if !strings.Contains(path, "\n") {
		return path
	}
	return configValue(path)
}

// writeGit writes a workspace's own files to its .git at dir, which may have others.
func writeGit(dir string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// datedIndex copies the tree's index to path if the tree was built so recently that Git could miss an edit: Git trusts a file
// whose size and modification time, in seconds, are those in the index, unless the index is not newer than the file. The copy
// has the current time, so Git reads the files of this second again. always copies an older index too, as it is.
func datedIndex(tree, path string, always bool) error {
	index := checkout.GitDirOf(tree).Index()
	info, err := os.Stat(index)
	if err != nil {
		return err
	}
	at, now := info.ModTime(), time.Now().Truncate(time.Second)
	if at.After(now) {
		at = now
	} else if !always {
		return nil
	}
	if err := copyContent(index, path); err != nil {
		return err
	}
	return os.Chtimes(path, at, at)
}

func copyContent(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// hasID reports whether dir is a workspace with this ID.
func hasID(dir, id string) (bool, error) {
	content, err := os.ReadFile(filepath.Join(dir, ".git", idFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return strings.TrimSpace(string(content)) == id, err
}
