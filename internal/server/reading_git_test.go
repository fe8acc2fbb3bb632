package server_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// gitURL serves the library to Git, and returns the URL of a repository for a token.
func (l *library) gitURL(token, repo string) string {
	l.Helper()
	srv := httptest.NewServer(documented(l.T, l.cfg))
	l.Cleanup(func() {
		srv.Close()
		l.cfg.Reading.Close()
	})
	return strings.Replace(srv.URL, "://", "://any:"+token+"@", 1) + "/git/" + repo + ".git"
}

// TestGit clones and fetches with the tokens of apps and of the operator.
func TestGit(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.depth = events.DepthFull
	first := l.sync("acme/widgets", "", "docs")
	clone := filepath.Join(t.TempDir(), "clone")
	url := l.gitURL(l.docs, "acme/widgets")
	git := func(args ...string) string {
		return testenv.Must(gitserver.Git(t.Context(), clone, "", args...))(t)
	}
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", url, clone))(t)
	if head := git("rev-parse", "HEAD"); head != first || git("symbolic-ref", "HEAD") != "refs/heads/main" {
		t.Errorf("cloned %s, want %s", head, first)
	}
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"README": "2"}})
	second := l.sync("acme/widgets", "") // for another app
	git("fetch", "-q")
	if head := git("rev-parse", "origin/main"); head != first {
		t.Errorf("fetched %s, which is not settled for the app", head)
	}
	if _, err := gitserver.Git(t.Context(), clone, "", "fetch", "-q", "origin", second); err == nil || !strings.Contains(err.Error(), "not our ref") {
		t.Errorf("fetched a commit that is not settled for the app: %v", err)
	}
	if answer := l.acknowledges(url, first, second); !strings.Contains(answer, "NAK") {
		t.Errorf("a commit that is not settled for the app is acknowledged: %q", answer)
	}
	l.sync("acme/widgets", "", "docs")
	if answer := l.acknowledges(url, second, first); !strings.Contains(answer, "ACK "+first) {
		t.Errorf("the former commit is not acknowledged: %q", answer)
	}
	git("fetch", "-q")
	if head := git("rev-parse", "origin/main"); head != second {
		t.Errorf("fetched %s, want %s", head, second)
	}
	git("fsck", "--full", "--strict")
	operator := filepath.Join(t.TempDir(), "operator")
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", l.gitURL("operator", "acme/widgets"), operator))(t)
}

// acknowledges asks for a commit and claims to have another, and returns the answer.
func (l *library) acknowledges(url, want, have string) string {
	l.Helper()
	return l.postFetch(url, fmt.Sprintf("0032want %s\n0032have %s\n", want, have))
}

// postFetch sends the arguments of a fetch, and returns the answer.
func (l *library) postFetch(url, arguments string) string {
	l.Helper()
	body := "0011command=fetch0001" + arguments + "0000"
	r := testenv.Must(http.NewRequestWithContext(l.Context(), http.MethodPost, url+"/git-upload-pack", strings.NewReader(body)))(l.T)
	r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	r.Header.Set("Git-Protocol", "version=2")
	resp := testenv.Must(http.DefaultClient.Do(r))(l.T)
	defer resp.Body.Close()
	return string(testenv.Must(io.ReadAll(resp.Body))(l.T))
}

// TestGitRefuses sends requests that are not authorized, and wants more history than there is.
func TestGitRefuses(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	l.sync("acme/secret", "", "scan")
	url := l.gitURL(l.docs, "acme/widgets")
	base, _, _ := strings.Cut(url, "acme/")
	get := func(user, path string) (int, string) {
		r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(base, "any:"+l.docs+"@", user, 1)+path, nil))(t)
		resp := testenv.Must(http.DefaultClient.Do(r))(t)
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("WWW-Authenticate")
	}
	const service = ".git/info/refs?service=git-upload-pack"
	for path, want := range map[string]int{"acme/widgets": 200, "acme/secret": 404, "acme/none": 404, "acme": 404, "../acme/widgets": 404} {
		if status, _ := get("any:"+l.docs+"@", path+service); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	for _, user := range []string{"", "any:wrong@", l.docs + ":@"} {
		if status, ask := get(user, "acme/widgets"+service); status != 401 || !strings.HasPrefix(ask, "Basic ") {
			t.Errorf("%q: %d, %q", user, status, ask)
		}
	}
	send := func(method, path string, header ...string) int {
		r := testenv.Must(http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader("0000")))(t)
		r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp := testenv.Must(http.DefaultClient.Do(r))(t)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	const fetch = ".git/git-upload-pack"
	for _, tc := range []struct {
		want int
		got  int
	}{
		{403, send(http.MethodGet, "acme/widgets.git/info/refs?service=git-receive-pack")},
		{403, send(http.MethodPost, "acme/widgets"+fetch, "X-Forwarded-For", "192.0.2.1")},
		{404, send(http.MethodPost, "acme/secret"+fetch)},
		{415, send(http.MethodPost, "acme/widgets"+fetch, "Content-Type", "text/plain")},
	} {
		if tc.got != tc.want {
			t.Errorf("status %d, want %d", tc.got, tc.want)
		}
	}
	if _, err := gitserver.Git(t.Context(), "/", "", "push", url, "HEAD:refs/heads/main"); err == nil {
		t.Error("a push was accepted")
	}
	_, err := gitserver.Git(t.Context(), "/", "", "clone", "-q", url, filepath.Join(t.TempDir(), "clone"))
	if err == nil || !strings.Contains(err.Error(), "kept at depth 1: use --depth, or watch with full depth") {
		t.Errorf("clone: %v", err)
	}
	l.redis.Stop()
	for method, path := range map[string]string{http.MethodGet: "acme/widgets" + service, http.MethodPost: "acme/widgets" + fetch} {
		if status := send(method, path); status != 503 {
			t.Errorf("%s without Redis: %d", method, status)
		}
	}
}

// TestPushBetweenListAndFetch wants a commit of a store of depth 1 that a push has replaced after it was listed.
func TestPushBetweenListAndFetch(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	first := l.sync("acme/widgets", "", "docs")
	srv := httptest.NewServer(documented(l.T, l.cfg))
	t.Cleanup(srv.Close)
	fetch := func(token, commit string) (text string) {
		t.Helper()
		r := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/git/acme/widgets.git/git-upload-pack",
			strings.NewReader(fmt.Sprintf("0011command=fetch00010032want %s\n000cdeepen 10009done\n0000", commit))))(t)
		r.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		r.Header.Set("Git-Protocol", "version=2")
		r.SetBasicAuth("any", token)
		resp := testenv.Must(http.DefaultClient.Do(r))(t)
		defer resp.Body.Close()
		return string(testenv.Must(io.ReadAll(resp.Body))(t))
	}
	url := strings.Replace(srv.URL, "://", "://any:"+l.docs+"@", 1) + "/git/acme/widgets.git"
	testenv.Must(gitserver.Git(t.Context(), "/", "", "ls-remote", url))(t)
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"README": "2"}})
	second := l.sync("acme/widgets", "", "docs", "scan")
	l.watch("scan", "acme/widgets", "")
	if answer := fetch(l.docs, first); !strings.Contains(answer, "PACK") || !strings.Contains(answer, "shallow "+first) {
		t.Errorf("the commit that was listed: %.200q", answer)
	}
	for commit, want := range map[string]string{first: "not our ref", second: "PACK"} {
		if answer := fetch(l.scan, commit); !strings.Contains(answer, want) {
			t.Errorf("an app that has listed nothing: %.200q, want %s", answer, want)
		}
	}
	testenv.Must(0, os.RemoveAll(testenv.Must(filepath.Glob(filepath.Join(l.vol.Root(), ".lockstep/repos/acme/widgets/trees/101-*")))(t)[0]))(t)
	if answer := fetch(l.docs, first); !strings.Contains(answer, "not our ref") {
		t.Errorf("its tree is gone: %.200q", answer)
	}
}

// TestGitPurged wants a commit that was listed before it was purged, while another reader keeps its tree in place.
func TestGitPurged(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.depth = events.DepthFull
	clean := l.sync("acme/widgets", "", "docs")
	leaked := l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"key": "secret"}})
	l.sync("acme/widgets", "", "docs")
	url := l.gitURL(l.docs, "acme/widgets")
	clone := filepath.Join(t.TempDir(), "clone")
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", url, clone))(t)
	l.fence++
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	testenv.Must(0, l.vol.Purge(t.Context(), repo, l.fence, ""))(t)
	opened := testenv.Must(tree.Open(l.vol.Root(), "acme/widgets"))(t)
	defer opened.Close()
	l.push("acme/widgets", gitserver.Edit{Write: map[string]string{"key": "none"}, Parent: clean})
	l.sync("acme/widgets", "", "docs")
	if left := testenv.Must(l.vol.PurgeLeft(repo))(t); len(left.Names) > 0 || len(left.Pinned) != 1 {
		t.Errorf("left: %+v", left)
	}
	if answer := l.acknowledges(url, leaked, clean); !strings.Contains(answer, "not our ref "+leaked) {
		t.Errorf("the purged commit is served: %.200q", answer)
	}
}

// TestGitManyRefs clones more refs than trees are kept open for.
func TestGitManyRefs(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.depth = events.DepthFull
	l.sync("acme/widgets", "", "docs")
	for i := range 20 {
		name := fmt.Sprintf("b%02d", i)
		testenv.Must(l.git.Commit(t.Context(), "acme/widgets", name, gitserver.Edit{Write: map[string]string{"README": name}}))(t)
		l.sync("acme/widgets", name, "docs")
	}
	clone := filepath.Join(t.TempDir(), "clone")
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", "--mirror", l.gitURL("operator", "acme/widgets"), clone))(t)
	testenv.Must(gitserver.Git(t.Context(), clone, "", "fsck", "--full", "--strict"))(t)
	if refs := testenv.Must(gitserver.Git(t.Context(), clone, "", "for-each-ref", "refs/heads"))(t); len(strings.Split(refs, "\n")) != 21 {
		t.Errorf("%s", refs)
	}
}
