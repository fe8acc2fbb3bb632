package volume

import (
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// detach detaches the remote's HEAD at a commit.
func (w *world) detach(commit string) {
	w.t.Helper()
	testenv.Must(w.git.Git(w.t.Context(), widgets, "", "update-ref", "--no-deref", "HEAD", commit))(w.t)
}

// TestDetachedHead publishes what git clones, on a branch or not.
func TestDetachedHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	side := w.commit("side", gitserver.Edit{Write: map[string]string{"a": "side"}})
	check := func(when string, want events.Ref, commit string) {
		t.Helper()
		clone := t.TempDir()
		testenv.Must(gitserver.Git(t.Context(), clone, "", "clone", "-q", w.git.URL(widgets), "."))(t)
		if head := testenv.Must(gitserver.Git(t.Context(), clone, "", "rev-parse", "HEAD"))(t); head != commit {
			t.Fatalf("%s: git clones %s, want %s", when, head, commit)
		}
		res, err := w.trySync("")
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if res.Ref != want || res.After != commit || res.Path != widgets {
			t.Errorf("%s: %s at %s as %s", when, res.Ref, res.After, res.Path)
		}
		w.mustBeSound(widgets, commit)
		refs := testenv.Must(w.volume.ListRefs(t.Context(), ListRefsRequest{Repo: repoPath(t, widgets), URL: w.git.URL(widgets)}))(t)
		if refs.Default != want || refs.Commits[want.String()] != commit {
			t.Errorf("%s: lists %s as default, of %v", when, refs.Default, refs.Commits)
		}
		published, _, err := w.volume.Published(repoPath(t, widgets))
		if err != nil || published.Plain != want || published.Commits[want] != commit {
			t.Errorf("%s: published %+v, %v", when, published, err)
		}
	}
	branch := testenv.Must(events.ParseRef("main"))(t)

	w.detach(main)
	check("detached at the commit of a branch", events.DetachedHead, main)
	pushed := w.push(map[string]string{"a": "2"})
	check("after a push to that branch", events.DetachedHead, main)
	w.detach(side)
	testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/side"))(t)
	check("detached at no branch", events.DetachedHead, side)
	if res := w.sync("main"); res.After != pushed || res.Path != widgets+"@main" {
		t.Errorf("main is published as %s at %s", res.Path, res.After)
	}
	check("beside a branch", events.DetachedHead, side)
	testenv.Must(0, w.git.SetHead(widgets, "main"))(t)
	check("on a branch again", branch, pushed)
	if report := w.verify(false); report.Found != 0 {
		t.Errorf("%+v", report)
	}
}
