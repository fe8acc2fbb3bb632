package gitrepo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/index"

	"lockstep/events"
)

// gitDir is the small .git of a tree. It has no objects of its own and no remote; plain Git works
// in the tree by it.
type gitDir struct{ dir string }

func gitDirOf(tree string) gitDir { return gitDir{filepath.Join(tree, ".git")} }

func (g gitDir) index() string { return filepath.Join(g.dir, "index") }

// treeConfig keeps Git from rewriting what it need not: the trees that share a file change its
// link count, and with it its ctime.
const treeConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = false
	trustctime = false
	checkStat = minimal
[gc]
	auto = 0
[maintenance]
	auto = false
`

// write makes the .git of a tree that checks commit out for ref and reads objects from the store at
// the end of the relative path alternates.
func (g gitDir) write(ref events.Ref, commit plumbing.Hash, alternates string) error {
	files := map[string]string{
		"config":                  treeConfig,
		"shallow":                 commit.String() + "\n",
		"objects/info/alternates": alternates + "\n",
		"lockstep-ref":            ref.String() + "\n",
		"HEAD":                    commit.String() + "\n",
	}
	if strings.HasPrefix(ref.String(), "refs/heads/") {
		files["HEAD"] = "ref: " + ref.String() + "\n"
		files["packed-refs"] = "# pack-refs with: peeled fully-peeled sorted \n" + commit.String() + " " + ref.String() + "\n"
	}
	for _, sub := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(g.dir, filepath.FromSlash(sub)), 0o755); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(g.dir, filepath.FromSlash(name)), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// store returns the folder of the store that the tree reads objects from, or "" when it reads none.
func (g gitDir) store() (string, error) {
	objects := filepath.Join(g.dir, "objects")
	line, err := os.ReadFile(filepath.Join(objects, "info", "alternates"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return filepath.Dir(filepath.Join(objects, strings.TrimSpace(string(line)))), err
}

// indexLead is how far the index is dated ahead of the files it describes. Git distrusts entries as
// young as the index itself and would read all those files again at the first "git status".
const indexLead = 2 * time.Second

func (g gitDir) writeIndex(entries []*index.Entry) error {
	file, err := os.OpenFile(g.index(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	buffered := bufio.NewWriterSize(file, 1<<16)
	if err := index.NewEncoder(buffered).Encode(&index.Index{Version: 2, Entries: entries}); err != nil {
		return fmt.Errorf("encode the index: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	ahead := time.Now().Add(indexLead)
	return os.Chtimes(g.index(), ahead, ahead)
}

// checkedOut returns the ref and the commit that a whole tree was built for; ok is false when path
// is no such tree, or has lost its store.
func checkedOut(tree string) (ref, commit string, ok bool) {
	g := gitDirOf(tree)
	refLine, err := os.ReadFile(filepath.Join(g.dir, "lockstep-ref"))
	if err != nil {
		return "", "", false
	}
	commitLine, err := os.ReadFile(filepath.Join(g.dir, "shallow"))
	if err != nil {
		return "", "", false
	}
	store, err := g.store()
	if err != nil || store == "" {
		return "", "", false
	}
	if _, err := os.Lstat(filepath.Join(store, "objects")); err != nil {
		return "", "", false
	}
	ref, commit = strings.TrimSpace(string(refLine)), strings.TrimSpace(string(commitLine))
	_, rest, _ := strings.Cut(filepath.Base(tree), "-")
	return ref, commit, plumbing.IsHash(commit) && strings.HasPrefix(rest, commit[:12])
}
