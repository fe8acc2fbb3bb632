package volume

import (
	"maps"
	"os"
	"testing"

	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// links and allLinks must agree, also if a tree does not record its ref.
func TestLinksMatchAllLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	w.commit("a/b", gitserver.Edit{Write: map[string]string{"b": "1"}})
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "t%1", main))(t)
	w.sync("")
	w.sync("a/b")
	res := w.sync("refs/tags/t%1")
	testenv.Must(0, w.git.SetHead(widgets, "a/b"))(t)
	w.sync("") // the plain name and the other link to one tree
	testenv.Must(w.git.Create(t.Context(), "acme/widgets2", map[string]string{"c": "1"}))(t)
	w.syncAt("acme/widgets2", "")
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(t)
	check := func(when string) {
		t.Helper()
		want := testenv.Must(w.volume.allLinks(f, b))(t)
		if got := testenv.Must(w.volume.links(f, b))(t); !maps.Equal(got, want) || len(want) != 3 {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	check("as it was made")
	testenv.Must(0, checkout.GitDirOf(w.path(res.Tree)).Unmake())(t)
	check("marked as damaged")
	testenv.Must(0, os.RemoveAll(checkout.GitDirOf(w.path(res.Tree)).Dir))(t)
	check("without a .git")
}
