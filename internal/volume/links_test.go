package volume

import (
	"maps"
	"os"
	"testing"

	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
)

// links and allLinks must agree, also if a tree does not record its ref.
func TestLinksMatchAllLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	w.commit("a/b", gitserver.Edit{Write: map[string]string{"b": "1"}})
	must(0, w.git.Tag(t.Context(), widgets, "t%1", main))(t)
	w.sync("")
	w.sync("a/b")
	res := w.sync("refs/tags/t%1")
	must(0, w.git.SetHead(widgets, "a/b"))(t)
	w.sync("") // the plain name and the other link to one tree
	must(w.git.Create(t.Context(), "acme/widgets2", map[string]string{"c": "1"}))(t)
	w.syncAt("acme/widgets2", "")
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	must(0, err)(t)
	check := func(when string) {
		t.Helper()
		want := must(w.volume.allLinks(f, b))(t)
		if got := must(w.volume.links(f, b))(t); !maps.Equal(got, want) || len(want) != 3 {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	check("as it was made")
	must(0, checkout.GitDirOf(w.path(res.Tree)).Unmake())(t)
	check("marked as damaged")
	must(0, os.RemoveAll(checkout.GitDirOf(w.path(res.Tree)).Dir))(t)
	check("without a .git")
}
