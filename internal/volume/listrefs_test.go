package volume

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func (w *world) listRequest() ListRefsRequest {
	return ListRefsRequest{Repo: repoPath(w.t, widgets), URL: w.git.URL(widgets)}
}

func TestListRefsReturnsBranchesAndTags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/a/b", main))(t)
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/pull/1/head", main))(t)
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/tags/light", main))(t)
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "annotated", main))(t)

	got := testenv.Must(w.volume.ListRefs(t.Context(), w.listRequest()))(t)

	want := map[string]string{"refs/heads/main": main, "refs/heads/a/b": main, "refs/tags/light": main, "refs/tags/annotated": main}
	if got.Default.String() != "refs/heads/main" || !maps.Equal(got.Commits, want) {
		t.Errorf("got %+v", got)
	}
	if stats := w.git.Stats(widgets); stats.UploadPacks != 0 || stats.InfoRefs != 1 {
		t.Errorf("asked %+v", stats)
	}
	if left := testenv.Must(os.ReadDir(w.volume.reposDir()))(t); len(left) != 0 {
		t.Errorf("it wrote %v", left)
	}
}

func TestListRefsWithoutADefaultBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	testenv.Must(0, w.git.SetHead(widgets, "none"))(t)
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/other", main))(t)
	testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/main"))(t)
	got := testenv.Must(w.volume.ListRefs(t.Context(), w.listRequest()))(t)
	if !got.Default.IsZero() || len(got.Commits) != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestListRefsErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange     func(w *world)
		class       events.Class
		disposition events.Disposition
	}{
		"an empty repository": {arrange: func(w *world) {
			testenv.Must(0, w.git.Delete(widgets))(w.t)
			testenv.Must(0, w.git.CreateEmpty(w.t.Context(), widgets))(w.t)
		}},
		"not there":           {arrange: func(w *world) { testenv.Must(0, w.git.Delete(widgets))(w.t) }, class: events.ClassNotFound, disposition: events.Permanent},
		"a credential wanted": {arrange: func(w *world) { w.git.RequireAuth(widgets, "ada", secret) }, class: events.ClassAuth, disposition: events.Permanent},
		"server down":         {arrange: func(w *world) { w.git.Answer(widgets, http.StatusBadGateway) }, class: events.ClassServer, disposition: events.Retryable},
		"unreachable":         {arrange: func(w *world) { w.git.Close() }, class: events.ClassNetwork, disposition: events.Retryable},
		"another remote than the one bound": {arrange: func(w *world) {
			testenv.Must(w.git.Create(w.t.Context(), "other/repo", map[string]string{"b": "1"}))(w.t)
			req := w.request("")
			req.URL = w.git.URL("other/repo")
			testenv.Must(w.volume.Sync(w.t.Context(), req))(w.t)
		}, class: events.ClassConflict, disposition: events.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			tc.arrange(w)
			got, err := w.volume.ListRefs(t.Context(), w.listRequest())
			if tc.class != "" {
				testenv.MustFail(t, err, tc.class, tc.disposition)
				return
			}
			if testenv.Must(got, err)(t).Commits != nil || !got.Default.IsZero() {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestListRefsOfTooManyRefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		line := func(text string) error {
			_, err := fmt.Fprintf(rw, "%04x%s", len(text)+4, text)
			return err
		}
		_ = line("# service=git-upload-pack\n")
		_, _ = fmt.Fprint(rw, "0000")
		hash, name := strings.Repeat("1", 40), "refs/heads/"+strings.Repeat("a", 60_000)
		for i, err := 0, line(hash+" HEAD\x00\n"); err == nil; i++ {
			err = line(fmt.Sprintf("%s %s%d\n", hash, name, i))
		}
	}))
	defer server.Close()
	req := w.listRequest()
	req.URL = server.URL + "/acme/widgets"
	_, err := w.volume.ListRefs(t.Context(), req)
	testenv.MustFail(t, err, events.ClassQuota, events.Permanent)
}
