package server_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

// beforeFetch serves the library to Git at two processes: one lists refs, and another one answers fetches, after push was called once.
// It returns the URL of a repository for a token.
func (l *library) beforeFetch(token, repo string, push func()) string {
	l.Helper()
	other := &server.Reading{Tokens: l.cfg.Reading.Tokens, Reader: l.cfg.Reading.Reader}
	fetches := l.cfg
	fetches.Reading = other
	list, fetch := documented(l.T, l.cfg), documented(l.T, fetches)
	l.Cleanup(l.cfg.Reading.Close)
	l.Cleanup(other.Close)
	pushed := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := testenv.Must(io.ReadAll(r.Body))(l.T)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if r.Method == http.MethodGet || bytes.Contains(body, []byte("command=ls-refs")) {
			list.ServeHTTP(w, r)
			return
		}
		if !pushed {
			pushed = true
			push()
		}
		fetch.ServeHTTP(w, r)
	}))
	l.Cleanup(srv.Close)
	return strings.Replace(srv.URL, "://", "://any:"+token+"@", 1) + "/git/" + repo + ".git"
}

// TestGitClonesWhileAPushSettles clones with real Git, with and without a depth, while pushes settle between the list of refs and the fetch: the
// clone has the commit that was listed.
func TestGitClonesWhileAPushSettles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		depth    events.Depth
		args     []string
		force    bool
		pushes   int
		operator bool
	}{
		"depth 1":                           {depth: 1, args: []string{"--depth=1"}, pushes: 1},
		"depth 1, protocol 0":               {depth: 1, args: []string{"-c", "protocol.version=0", "--depth=1"}, pushes: 1},
		"depth 1, rewritten":                {depth: 1, args: []string{"--depth=1"}, force: true, pushes: 1},
		"depth 1 of a full history":         {depth: events.DepthFull, args: []string{"--depth=1"}, pushes: 1},
		"depth 1, one branch":               {depth: 1, args: []string{"--depth=1", "--single-branch", "--branch=main"}, pushes: 1},
		"all, rewritten":                    {depth: events.DepthFull, force: true, pushes: 1},
		"depth 1, several pushes":           {depth: 1, args: []string{"--depth=1"}, pushes: 4},
		"depth 1, several pushes, operator": {depth: 1, args: []string{"--depth=1"}, pushes: 4, operator: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLibrary(t)
			l.depth = tc.depth
			first := l.sync("acme/widgets", "", "docs")
			token := l.docs
			if tc.operator {
				token = "operator"
			}
			url := l.beforeFetch(token, "acme/widgets", func() {
				for i := range tc.pushes {
					l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"README": strings.Repeat("x", i+1)}, Orphan: tc.force})
					l.sync("acme/widgets", "", "docs")
				}
			})
			clone := filepath.Join(t.TempDir(), "clone")
			if _, err := gitserver.Git(t.Context(), "/", "", slices.Concat([]string{"clone", "-q"}, tc.args, []string{url, clone})...); err != nil {
				t.Fatalf("clone: %v", err)
			}
			if head := testenv.Must(gitserver.Git(t.Context(), clone, "", "rev-parse", "HEAD"))(t); head != first {
				t.Errorf("cloned %s, want %s, which was listed", head, first)
			}
			testenv.Must(gitserver.Git(t.Context(), clone, "", "fsck", "--full", "--strict"))(t)
			testenv.Must(gitserver.Git(t.Context(), clone, "", slices.Concat([]string{"fetch", "-q"}, slices.DeleteFunc(slices.Clone(tc.args), func(arg string) bool { return !strings.HasPrefix(arg, "--depth") }))...))(t)
		})
	}
}

// TestHavesOfOtherApps claims to have commits that the ref had: those that were given to the app are acknowledged, and those that
// only another app was given, before a force push, are not.
func TestHavesOfOtherApps(t *testing.T) {
	t.Parallel()
	for name, depth := range map[string]events.Depth{"depth 1": 1, "full": events.DepthFull} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLibrary(t)
			l.depth = depth
			own := l.sync("acme/widgets", "", "docs")
			leaked := l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"key": "secret"}})
			l.sync("acme/widgets", "", "scan")
			l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"key": "none"}, Orphan: true})
			head := l.sync("acme/widgets", "", "docs", "scan")
			l.watch("scan", "acme/widgets", "")
			docs, scan := l.gitURL(l.docs, "acme/widgets"), l.gitURL(l.scan, "acme/widgets")
			if answer := l.acknowledgesAt(docs, head, leaked); strings.Contains(answer, "ACK "+leaked) {
				t.Errorf("a commit that the app was never given is acknowledged: %q", answer)
			}
			if answer := l.acknowledgesAt(docs, head, own); !strings.Contains(answer, "ACK "+own) {
				t.Errorf("a commit that the app was given is not acknowledged: %q", answer)
			}
			if answer := l.acknowledgesAt(scan, head, leaked); !strings.Contains(answer, "ACK "+leaked) {
				t.Errorf("a commit that the other app was given is not acknowledged to it: %q", answer)
			}
		})
	}
}

// acknowledgesAt is like acknowledges, with a depth of 1.
func (l *library) acknowledgesAt(url, want, have string) string {
	l.Helper()
	return l.postFetch(url, "0032want "+want+"\n000cdeepen 10032have "+have+"\n")
}
