package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// repositoriesVariable names the folder of the real repositories: its subfolders, or links to such.
const repositoriesVariable = "LOCKSTEP_TEST_REPOSITORIES"

// TestRealRepositoriesMatchGitClone publishes real repositories, and compares each tree with git's own clone of the same commit, byte
// by byte. Then it does so for commits of their history.
func TestRealRepositoriesMatchGitClone(t *testing.T) {
	testenv.SkipUnderRace(t)
	dir := os.Getenv(repositoriesVariable)
	if dir == "" {
		t.Skipf("set %s to a folder of repositories", repositoriesVariable)
	}
	dir = proctest.Must(filepath.Abs(dir))(t)
	m := newMirror(t)
	tried := 0
	for _, entry := range proctest.Must(os.ReadDir(dir))(t) {
		original := filepath.Join(dir, entry.Name())
		if _, err := gitserver.Git(t.Context(), original, "", "rev-parse", "--git-dir"); err != nil {
			continue // not a repository
		}
		tried++
		name := "real/" + strings.TrimSuffix(entry.Name(), ".git")
		t.Run(name, func(t *testing.T) {
			proctest.Must(0, os.MkdirAll(filepath.Dir(m.git.Dir(name)), 0o755))(t)
			if _, err := gitserver.Git(t.Context(), "/", "", "clone", "--quiet", "--bare", "--shared", original, m.git.Dir(name)); err != nil {
				t.Fatal(err)
			}
			if _, err := gitserver.Git(t.Context(), "/", "", "clone", "--quiet", "--depth", "1", "--no-checkout", m.git.URL(name), t.TempDir()); err != nil {
				t.Skipf("git cannot clone it: %v", err) // the copy may lack objects
			}
			m.replay(t, name)
		})
	}
	if tried == 0 {
		t.Errorf("%s has no repositories", dir)
	}
}

// TestOddRepositoriesMatchGitClone does the same with repositories that have unusual contents, histories and refs.
func TestOddRepositoriesMatchGitClone(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	m := newMirror(t)
	for _, format := range []string{"sha1", "sha256"} {
		for _, odd := range oddRepositories {
			t.Run(format+"/"+odd.name, func(t *testing.T) {
				if odd.large && !testenv.Soaking() {
					t.Skip("large: run make test-soak")
				}
				repo := format + "/" + odd.name
				proctest.Must(0, m.git.CreateEmptyAs(t.Context(), format, repo))(t)
				odd.make(&oddRepository{T: t, git: m.git, repo: repo, format: format})
				for _, ref := range odd.refs {
					m.compareRef(t, repo, ref)
				}
				m.replay(t, repo)
			})
		}
	}
}

// mirror is a running service with a Git server to sync from.
type mirror struct {
	git         *gitserver.Server
	redis, root string
	server      *redistest.Server
	service     *proctest.Process
}

func newMirror(t *testing.T, args ...string) *mirror {
	t.Helper()
	m := &mirror{git: proctest.StartGit(t), server: redistest.Start(t), root: t.TempDir()}
	m.redis = m.server.URL()
	m.service = proctest.Start(t, append([]string{"serve", "--root", m.root, "--redis", m.redis}, args...)...)
	return m
}

// replay pushes commits of a repository's own history one after the other, and its tip before and after them.
func (m *mirror) replay(t *testing.T, repo string) {
	t.Helper()
	tip := proctest.Must(m.git.Git(t.Context(), repo, "", "rev-parse", "HEAD"))(t)
	clone := m.clone(t, repo, "HEAD")
	m.compare(t, repo, "", clone, tip)
	files := proctest.Must(m.git.Git(t.Context(), repo, "", "ls-tree", "-r", "--name-only", tip))(t)
	commits := spread(strings.Fields(proctest.Must(m.git.Git(t.Context(), repo, "", "rev-list", "--first-parent", "--reverse", tip))(t)))
	compared := 1
	for _, commit := range append(commits, tip) {
		proctest.Must(m.git.Git(t.Context(), repo, "", "update-ref", "HEAD", commit))(t)
		if _, err := gitserver.Git(t.Context(), clone, "", "fetch", "--quiet", "--depth", "1", "origin", "HEAD"); err != nil {
			t.Logf("skipped %.12s, which git cannot fetch: %v", commit, err) // the copy may lack objects
			continue
		}
		resetTo(t, clone, "FETCH_HEAD")
		m.compare(t, repo, "", clone, commit)
		compared++
		if t.Failed() {
			return
		}
	}
	t.Logf("%d files; %d trees are the same", strings.Count(files, "\n")+1, compared)
}

// spread returns ten commits from all over a history, and its last ten, without the tip.
func spread(all []string) []string {
	const some = 10
	all = all[:len(all)-1]
	if len(all) <= 2*some {
		return all
	}
	var chosen []string
	old := len(all) - some
	for i := range some {
		chosen = append(chosen, all[i*old/some])
	}
	return append(chosen, all[old:]...)
}

// compareRef syncs one ref and compares its tree with git's clone.
func (m *mirror) compareRef(t *testing.T, repo, ref string) {
	t.Helper()
	commit := proctest.Must(m.git.Git(t.Context(), repo, "", "rev-parse", "--verify", "--end-of-options", ref+"^{commit}"))(t)
	m.compare(t, repo, ref, m.clone(t, repo, ref), commit)
}

// compare syncs a ref, or the default branch, and compares the published tree with a clone of the commit.
func (m *mirror) compare(t *testing.T, repo, ref, clone, commit string, options ...string) {
	t.Helper()
	args := append([]string{"sync", m.git.URL(repo), "--redis", m.redis, "--repo", repo, "--json"}, options...)
	if ref != "" {
		args = append(args, "--ref", ref)
	}
	stdout, stderr, code := proctest.RunLockstep(t, nil, args...)
	if code != term.ExitDone {
		t.Fatalf("sync of %s %.12s: exit code %d: %s", ref, commit, code, stderr)
	}
	result := proctest.DecodeJSON(t, stdout)
	if result["after"] != commit {
		t.Fatalf("synced %v, want %s", result["after"], commit)
	}
	tree := filepath.Join(m.root, fmt.Sprint(result["path"]))
	if head := proctest.Must(gitserver.Git(t.Context(), tree, "", "rev-parse", "HEAD"))(t); head != commit {
		t.Errorf("git in the tree is at %s, want %s", head, commit)
	}
	different := differences(t, tree, clone)
	for i, what := range different {
		if i == 20 {
			t.Errorf("… and %d more", len(different)-i)
			break
		}
		t.Errorf("%s %.12s: %s", ref, commit, what)
	}
}

// clone makes a clone of a ref in which git writes blobs as they are.
func (m *mirror) clone(t *testing.T, repo, ref string) string {
	t.Helper()
	dir := t.TempDir()
	format := proctest.Must(m.git.Git(t.Context(), repo, "", "rev-parse", "--show-object-format"))(t)
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=clone", "--object-format=" + format},
		{"remote", "add", "origin", m.git.URL(repo)},
		{"fetch", "--quiet", "--depth", "1", "origin", ref},
	} {
		proctest.Must(gitserver.Git(t.Context(), dir, "", args...))(t)
	}
	info := filepath.Join(dir, ".git/info")
	proctest.Must(0, os.MkdirAll(info, 0o755))(t)
	proctest.Must(0, os.WriteFile(filepath.Join(info, "attributes"), []byte("* -text -eol -ident -filter -working-tree-encoding\n"), 0o600))(t)
	resetTo(t, dir, "FETCH_HEAD")
	return dir
}

// resetTo checks a commit out, and removes what git leaves behind of the last one.
func resetTo(t *testing.T, clone, commit string) {
	t.Helper()
	proctest.Must(gitserver.Git(t.Context(), clone, "", "-c", "core.autocrlf=false", "reset", "--quiet", "--hard", commit))(t)
	proctest.Must(gitserver.Git(t.Context(), clone, "", "clean", "-ffdxq"))(t)
}

// differences compares two trees apart from their .git: names, types, executable bits, link targets and contents.
func differences(t *testing.T, tree, clone string) (all []string) {
	t.Helper()
	got, want := entries(t, tree), entries(t, clone)
	paths := maps.Clone(got)
	maps.Copy(paths, want)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		a, b := got[path], want[path]
		switch {
		case a == nil || b == nil:
			all = append(all, fmt.Sprintf("%q is %s, in the clone %s", path, describe(a), describe(b)))
			continue
		case a.Mode() != b.Mode():
			all = append(all, fmt.Sprintf("%q has mode %v, in the clone %v", path, a.Mode(), b.Mode()))
			continue
		}
		same, err := true, error(nil)
		switch a.Mode().Type() {
		case fs.ModeSymlink:
			same, err = sameLink(filepath.Join(tree, path), filepath.Join(clone, path))
		case 0:
			same, err = sameFile(filepath.Join(tree, path), filepath.Join(clone, path))
		}
		if err != nil {
			t.Fatal(err)
		}
		if !same {
			all = append(all, fmt.Sprintf("%q differs", path))
		}
	}
	return all
}

func describe(info fs.FileInfo) string {
	if info == nil {
		return "missing"
	}
	return info.Mode().String()
}

// entries lists everything below a folder but its .git, by relative path.
func entries(t *testing.T, root string) map[string]fs.FileInfo {
	t.Helper()
	root = proctest.Must(filepath.EvalSymlinks(root))(t)
	all := map[string]fs.FileInfo{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == root:
			return nil
		case path == filepath.Join(root, ".git"):
			return fs.SkipDir
		}
		info, err := d.Info()
		all[strings.TrimPrefix(path, root+"/")] = info
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sameLink(a, b string) (bool, error) {
	x, errX := os.Readlink(a)
	y, errY := os.Readlink(b)
	return x == y, errors.Join(errX, errY)
}

// sameFile compares contents piece by piece, because files may be large.
func sameFile(a, b string) (bool, error) {
	x, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer y.Close()
	pieceX, pieceY := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errX := io.ReadFull(x, pieceX)
		m, errY := io.ReadFull(y, pieceY)
		if !bytes.Equal(pieceX[:n], pieceY[:m]) {
			return false, nil
		}
		for _, err := range []error{errX, errY} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if errX != nil {
			return true, nil
		}
	}
}
