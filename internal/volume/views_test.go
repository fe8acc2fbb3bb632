package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
)

// compareViews returns the views of a commit that differ from those of base, or from the subtrees.
func (w *world) compareViews(commit, base string, views map[string][]string, subtrees map[string]string) ([]ChangedView, error) {
	w.t.Helper()
	return w.volume.Views(w.t.Context(), ViewsRequest{
		Repo: repoPath(w.t, widgets), Commit: commit, Base: base, Views: testenv.Must(view.New(views))(w.t),
		Subtrees: func(context.Context) (map[string]string, error) { return subtrees, nil },
	})
}

// A view's subtree is the tree that git writes of an index with what git sparse-checkout checks out.
func TestSubtreesAreThoseOfGitSparseCheckout(t *testing.T) {
	t.Parallel()
	views := map[string][]string{
		"folder": {"docs/guide"}, "same": {"docs/guide"}, "file": {"README"}, "missing": {"nothing/here"}, "all": {"**"}, "code": {"**/*.go"}, "link": {"link"},
		"two": {"docs", "lib/*/x"}, "overlap": {"docs", "docs/guide", "docs/**"}, "mode": {"run.sh"}, "inside": {"lib/"}, "class": {"[l-r]*"},
		"odd": {`we\[ird`, "sp ace"}, "deep": {"a/**/z"}, "bytes": {"*/??raw"}, "dot": {".hidden"},
	}
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			testenv.Must(w.git.CreateAs(t.Context(), format, widgets, map[string]string{
				"README": "1", "docs/guide/a": "1", "docs/b.go": "1", "lib/x": "1", "lib/y/x": "1", "lib/y/z": "1", "we[ird/f": "1", "sp ace/f": "1",
				"a/z": "1", "a/b/c/z/f": "1", "c/\xff\xferaw": "1", ".hidden/f": "1", "a.b/x": "1", "docs-old/x": "1", "docs.go": "1",
			}))(t)
			commit := w.commit(gitserver.Main, gitserver.Edit{Exec: map[string]string{"run.sh": "1"}, Link: map[string]string{"link": "README"}})
			testenv.Must(w.volume.Sync(t.Context(), w.request(gitserver.Main)))(t)
			got := testenv.Must(w.compareViews(commit, "", views, nil))(t)
			if len(got) != len(views) {
				t.Fatalf("%d views, want %d", len(got), len(views))
			}
			sparse, index := t.TempDir(), t.TempDir()
			git := func(dir, stdin string, args ...string) string {
				t.Helper()
				return testenv.Must(gitserver.Git(t.Context(), dir, stdin, args...))(t)
			}
			for _, dir := range []string{sparse, index} {
				git(dir, "", "clone", "-q", w.git.Dir(widgets), ".")
			}
			for _, one := range got {
				git(sparse, "/"+strings.Join(views[one.Name], "\n/")+"\n", "sparse-checkout", "set", "--no-cone", "--stdin")
				var entries, files []string
				for line := range strings.SplitSeq(git(sparse, "", "ls-files", "-t", "-s", "-z"), "\x00") {
					if entry, ok := strings.CutPrefix(line, "H "); ok {
						_, file, _ := strings.Cut(entry, "\t")
						entries, files = append(entries, entry+"\x00"), append(files, file)
					}
				}
				git(index, "", "read-tree", "--empty")
				git(index, strings.Join(entries, ""), "update-index", "-z", "--index-info")
				if want := git(index, "", "write-tree"); one.Subtree != want {
					t.Errorf("the subtree of %s %q is %s, git has %s for %q", one.Name, views[one.Name], one.Subtree, want, files)
				}
				var listed []string
				for _, f := range one.Files {
					listed = append(listed, f.Name())
				}
				if slices.Sort(files); !slices.Equal(listed, files) {
					t.Errorf("%s lists %q, git checks out %q", one.Name, listed, files)
				}
			}
		})
	}
}

// Views with too many files are compared a few at a time.
func TestManyViewsOfManyFiles(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	w := newWorld(t)
	files := map[string]string{}
	for i := range 10_000 {
		files[fmt.Sprintf("src/%d.go", i)] = "1"
	}
	commit := w.create(files)
	testenv.Must(w.volume.Sync(t.Context(), w.request(gitserver.Main)))(t)
	views := map[string][]string{"one": {"**/*.go"}}
	for i := range 300 {
		views[fmt.Sprint("v", i)] = []string{"**/*.go", fmt.Sprint("own/", i)}
	}
	objects := object.Open(w.volume.folder(repoPath(t, widgets)).generation(1).dir)
	defer objects.Close()
	tree, _ := objects.TreeOf(object.ParseID(commit))
	set := testenv.Must(view.New(views))(t)
	if _, err := checkout.FilterTrees(t.Context(), objects, tree, set.At(set.Names()...)); err != checkout.ErrManySelections {
		t.Errorf("all together: %v, want %v", err, checkout.ErrManySelections)
	}
	got := testenv.Must(w.compareViews(commit, "", views, nil))(t)
	for _, one := range got {
		if one.Subtree != tree.String() {
			t.Errorf("%s is %s, want the whole tree %s", one.Name, one.Subtree, tree)
		}
	}
	if len(got) != 301 {
		t.Errorf("%d views, want 301", len(got))
	}
}

func TestViewsListABoundedNumberOfBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files, long := map[string]string{}, strings.Repeat("/"+strings.Repeat("x", 250), 10)
	for i := range 100 {
		files[fmt.Sprint("d", long, i)] = "1"
	}
	commit := w.create(files)
	testenv.Must(w.volume.Sync(t.Context(), w.request(gitserver.Main)))(t)
	views := map[string][]string{}
	for i := range 20 {
		views[fmt.Sprint("v", i)] = []string{"d"}
	}
	listed := 0
	for i, one := range testenv.Must(w.compareViews(commit, "", views, nil))(t) {
		for _, f := range one.Files {
			listed += len(f.Path)
		}
		if want := i >= 16; one.Truncated != want {
			t.Errorf("%s lists %d files, truncated %v", one.Name, len(one.Files), one.Truncated)
		}
	}
	if listed > maxViewBytes || listed < maxViewBytes-10_000 {
		t.Errorf("paths of %d bytes are listed, want at most %d", listed, maxViewBytes)
	}
}

func TestViewsListABoundedNumberOfFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{MaxFiles: 3})
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprint("d/", i)] = "1"
	}
	commit := w.create(files)
	testenv.Must(w.volume.Sync(t.Context(), w.request(gitserver.Main)))(t)
	views := map[string][]string{"one": {"d/1"}}
	for i := range 30 {
		views[fmt.Sprintf("v%02d", i)] = []string{"d"}
	}
	listed := 0
	for _, one := range testenv.Must(w.compareViews(commit, "", views, nil))(t) {
		listed += len(one.Files)
		if len(one.Files) > 3 || one.Truncated != (one.Name != "one") {
			t.Errorf("%s lists %d files, truncated %v", one.Name, len(one.Files), one.Truncated)
		}
	}
	if listed != 60 { // maxViewFiles times 3
		t.Errorf("all views list %d files, want 60", listed)
	}
	one := testenv.Must(w.compareViews(commit, "", map[string][]string{"one": {"d/1"}}, nil))(t)[0]
	if again := testenv.Must(w.compareViews(commit, "", map[string][]string{"one": {"d/1"}}, map[string]string{"one": one.Subtree}))(t); len(again) != 0 {
		t.Errorf("an equal subtree: %+v", again)
	}
	_, err := w.compareViews(strings.Repeat("c", 40), "", views, nil)
	testenv.MustFail(t, err, events.ClassCorrupt, events.Retryable)
}
