package tree

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
)

// sample is a volume with Lockstep's layout. internal/volume tests this package on real ones.
type sample struct {
	t    testing.TB
	root string
}

func newSample(t testing.TB) *sample { return &sample{t, t.TempDir()} }

func (s *sample) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func commit(letter string) string { return strings.Repeat(letter, 40) }

// build creates a tree of a repository at a commit of one repeated digit, and returns its synced result.
func (s *sample) build(repo, fence, digit string, files map[string]string) events.Result {
	s.t.Helper()
	parsed, err := events.ParseRepoPath(repo)
	s.check(err)
	ref, err := events.ParseRef("main")
	s.check(err)
	owner, rest, _ := strings.Cut(parsed.Key(), "/")
	tree := path.Join(".lockstep/repos", owner, strings.ReplaceAll(rest, "/", "%2F"), "trees", fence+"-"+commit(digit)[:12])
	all := map[string]string{".git/lockstep-commit": commit(digit) + "\n", ".git/lockstep-ref": ref.String() + "\n", pinFile: ""}
	for name, content := range files {
		all[name] = content
	}
	for name, content := range all {
		file := filepath.Join(s.root, tree, name)
		s.check(os.MkdirAll(filepath.Dir(file), 0o755))
		s.check(os.WriteFile(file, []byte(content), 0o644))
	}
	return events.Result{ID: "r" + fence, Type: events.ResultSynced, Repo: parsed, Ref: ref, After: commit(digit), Path: repo, Tree: tree}
}

// flip links a name to a tree with one rename.
func (s *sample) flip(name, tree string) {
	s.t.Helper()
	link := filepath.Join(s.root, name)
	s.check(os.MkdirAll(filepath.Dir(link), 0o755))
	target, err := filepath.Rel(filepath.Dir(link), filepath.Join(s.root, tree))
	s.check(err)
	s.check(os.Symlink(target, link+".new"))
	s.check(os.Rename(link+".new", link))
}

// publish builds and flips.
func (s *sample) publish(repo, fence, digit string, files map[string]string) events.Result {
	s.t.Helper()
	r := s.build(repo, fence, digit, files)
	s.flip(repo, r.Tree)
	return r
}

// recycle moves a tree away.
func (s *sample) recycle(tree string) {
	s.t.Helper()
	s.check(os.Rename(filepath.Join(s.root, tree), filepath.Join(s.t.TempDir(), "trash")))
}
