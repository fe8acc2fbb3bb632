package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// alternates is the file in a .git that names the store of its objects.
const alternates = "objects/info/alternates"

// gitFiles returns the files in the .git of a workspace that differ from those of the tree, by their path in it.
func gitFiles(t *tree.Tree) (map[string]string, error) {
	git := checkout.GitDirOf(t.Dir())
	config, err := os.ReadFile(filepath.Join(git.Dir, "config"))
	if err != nil {
		return nil, err
	}
	store, err := git.Store()
	if err != nil {
		return nil, err
	}
	remote, err := volume.RemoteOf(t.Dir())
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(filepath.Join(git.Dir, "shallow"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	objects := filepath.Join(store, "objects")
	if strings.Contains(objects, "\n") {
		objects = configValue(objects) // the file has a path per line
	}
	files := map[string]string{"config": string(config) + remoteConfig(remote, t.Ref(), err == nil),
		alternates: objects + "\n"}
	if branch, ok := strings.CutPrefix(t.Ref().String(), "refs/heads/"); ok {
		files["packed-refs"] = fmt.Sprintf("# pack-refs with: peeled fully-peeled sorted \n%s refs/heads/%s\n%s "+
			"refs/remotes/origin/%s\n",
			t.Commit(), branch, t.Commit(), branch)
	}
	return files, nil
}

// remoteConfig returns the part of Git's configuration that a workspace has besides that of its tree. A
// shallow one fetches only its own ref by default, as clones with --depth do.
//
// The refs of the store are no alternate refs: a shallow store has commits without their parents, which Git
// must not rely on.
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

// writeGit writes files to the .git of the workspace at dir, which may have others, and copies the index of the tree.
func writeGit(tree, dir string, files map[string]string) error {
	git := checkout.GitDirOf(dir)
	for name, content := range files {
		path := filepath.Join(git.Dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return copyIndex(tree, git.Index())
}
