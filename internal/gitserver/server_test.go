package gitserver

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const widgets = "acme/widgets"

func start(t *testing.T, opts ...Option) *Server {
	t.Helper()
	s, err := Start(t.TempDir(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func clone(t *testing.T, url string) (dir string, err error) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "clone")
	_, err = Git(t.Context(), "/", "", "clone", "--quiet", url, dir)
	return dir, err
}

func TestCommit(t *testing.T) {
	s := start(t)
	first, err := s.Create(t.Context(), widgets, map[string]string{"a": "1", "gone": "x", "b\xe9": "latin1"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Commit(t.Context(), widgets, Main, Edit{
		Write: map[string]string{"a": "2"}, Exec: map[string]string{"run": "#!"}, Link: map[string]string{"l": "a"}, Delete: []string{"gone"},
	})
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := s.Commit(t.Context(), widgets, "pages", Edit{Orphan: true, Write: map[string]string{"index": "hi"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Head(widgets, "refs/heads/main"); got != second {
		t.Errorf("main is at %s, want %s", got, second)
	}
	dir, err := clone(t, s.URL(widgets))
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"log --format=%H":                  second + "\n" + first,
		"ls-files":                         "a\n\"b\\351\"\nl\nrun",
		"log --format=%H origin/pages":     orphan,
		"ls-tree --name-only " + orphan:    "index",
		"log -1 --format=%an,%ct " + first: "Ada Example,1700000001",
	} {
		got, err := Git(t.Context(), dir, "", strings.Fields(command)...)
		if err != nil || got != want {
			t.Errorf("git %s: %q, %v; want %q", command, got, err, want)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "run")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("run: %v, %v", info, err)
	}
}

func TestCredentialsAndAnswers(t *testing.T) {
	s := start(t)
	if _, err := s.Create(t.Context(), widgets, map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	s.RequireAuth(widgets, "ada", "pw")
	if _, err := clone(t, s.URL(widgets)); err == nil {
		t.Error("cloned without a credential")
	}
	if _, err := clone(t, strings.Replace(s.URL(widgets), "http://", "http://ada:pw@", 1)); err != nil {
		t.Error(err)
	}
	stats := s.Stats(widgets)
	if len(stats.Credentials) != 1 || stats.UploadPacks == 0 || stats.Active != 0 || s.MaxRepos() != 1 {
		t.Errorf("stats %+v", stats)
	}
	s.RequireAuth(widgets, "", "")
	s.Answer(widgets, http.StatusBadGateway)
	if _, err := clone(t, s.URL(widgets)); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("got %v, want status 502", err)
	}
}

func TestCloseCancelsBlockedRequests(t *testing.T) {
	held := make(chan struct{})
	s := start(t, WithBefore(func(ctx context.Context, _, service string) {
		if service == uploadPack {
			close(held)
			<-ctx.Done()
		}
	}))
	if _, err := s.Create(t.Context(), widgets, map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := Git(t.Context(), t.TempDir(), "", "-c", "protocol.version=0", "clone", "--quiet", s.URL(widgets), "clone")
		failed <- err
	}()
	<-held
	s.Close()
	if err := <-failed; err == nil {
		t.Error("clone succeeded")
	}
}
