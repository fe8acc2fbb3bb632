package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// listed is a page of repositories as an app gets it.
type listed struct {
	Repos []struct {
		Repo, Git, Default string
		Refs               []struct {
			Ref, Commit, Depth string
			Default            bool
		}
	}
	Next string
}

func (l *library) list(token, query string) (page listed) {
	l.Helper()
	resp, body := l.request(token, strings.TrimSuffix(l.url, "/")+query)
	if err := json.Unmarshal([]byte(body), &page); err != nil || resp.StatusCode != http.StatusOK || page.Repos == nil {
		l.Fatalf("%s: %s %s, %v", query, resp.Status, body, err)
	}
	return page
}

func TestAppListsWhatItReads(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	if page := l.list(l.docs, ""); len(page.Repos) != 0 || page.Next != "" {
		t.Errorf("%+v, want nothing, as nothing is settled", page)
	}
	l.depth = events.DepthFull
	commit := l.sync("acme/widgets", "", "docs")
	l.sync("acme/secret", "", "scan")
	var want []string
	for i := range 7 {
		repo := fmt.Sprintf("acme/r%d", i)
		testenv.Must(l.git.Create(t.Context(), repo, map[string]string{"README": repo}))(t)
		l.watch("docs", repo, "")
		l.watch("scan", repo, "")
		if i != 3 { // not settled for docs
			l.sync(repo, "", "docs", "scan")
			want = append(want, repo)
		} else {
			l.sync(repo, "", "scan")
		}
	}
	page := l.list(l.docs, "?prefix=ACME/W")
	if len(page.Repos) != 1 || page.Repos[0].Repo != "acme/widgets" || page.Repos[0].Default != "refs/heads/main" || len(page.Repos[0].Refs) != 1 {
		t.Fatalf("%+v", page)
	}
	if ref := page.Repos[0].Refs[0]; ref.Commit != commit || ref.Ref != "refs/heads/main" || !ref.Default || ref.Depth != "full" {
		t.Errorf("%+v", ref)
	}
	if git := page.Repos[0].Git; git != strings.TrimSuffix(l.url, "api/v1/repos/")+"git/acme/widgets.git" {
		t.Errorf("URL %s", git)
	}
	var got []string
	after := ""
	for pages := 0; ; pages++ {
		page := l.list(l.docs, "?limit=2&after="+after)
		for _, r := range page.Repos {
			got = append(got, r.Repo)
		}
		if len(page.Repos) > 2 || pages > 10 {
			t.Fatalf("%+v", page)
		}
		if after = strings.ReplaceAll(page.Next, " ", "+"); after == "" {
			break
		}
	}
	if want = append(want, "acme/widgets"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	url := strings.TrimSuffix(l.url, "/")
	for query, want := range map[string]int{"?after=x": 400, "?after=acme/secret+~": 200, "?limit=0": 400, "?limit=1001": 400, "?after=%00": 400, "?prefix=%00": 200} {
		if resp, body := l.request(l.docs, url+query); resp.StatusCode != want || strings.Contains(body, "secret") {
			t.Errorf("%s: %s %s, want %d", query, resp.Status, body, want)
		}
	}
	if resp, body := l.request(l.docs, url, "X-Forwarded-Proto", "http"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("in clear text: %s %s", resp.Status, body)
	}
	if resp, body := l.get(l.docs, "acme/widgets", "X-Forwarded-Proto", "http"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("in clear text: %s %s", resp.Status, body)
	}
}

func TestAppSeesTheStateOfWhatItWatches(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	show := func(token string) (shown server.ReadableState, text string) {
		t.Helper()
		resp, body := l.get(token, "acme/widgets")
		if err := json.Unmarshal([]byte(body), &shown); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s %v", resp.Status, body, err)
		}
		return shown, body
	}
	if shown, text := show(l.docs); len(shown.Refs) != 0 || shown.Last != nil || shown.Repo != "acme/widgets" {
		t.Errorf("before the first sync: %s", text)
	}
	commit := l.sync("acme/widgets", "", "docs")
	l.watch("scan", "acme/widgets", "")
	l.settle("docs", "acme/widgets", "own")
	l.settle("scan", "acme/widgets", "foreign")
	l.settle("docs", "acme/secret", "not watched")
	shown, text := show(l.docs)
	if len(shown.Refs) != 1 || shown.Refs[0].Commit != commit || shown.Last == nil || shown.Last.ID != "own" || shown.Last.Type != "synced" || shown.Failed != nil {
		t.Errorf("%s", text)
	}
	if strings.Contains(text, "foreign") || strings.Contains(text, "circuit") {
		t.Errorf("more than the app may know: %s", text)
	}
	if shown, text := show(l.scan); len(shown.Refs) != 0 || shown.Last == nil || shown.Last.ID != "foreign" {
		t.Errorf("scan: %s", text)
	}
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	testenv.Must(l.client.HSet(t.Context(), events.DefaultNamespace.Repo(repo), "trouble", testenv.Refused(":docs")).Result())(t)
	l.settleAs(events.Result{ID: "refused", Type: events.ResultFailed, App: "docs", Repo: repo, Class: events.ClassAuth, Error: "the remote refuses the credential"})
	shown, text = show(l.docs)
	if len(shown.Refs) != 0 || shown.Last == nil || shown.Last.ID != "refused" || shown.Failed == nil || shown.Failed.Class != events.ClassAuth || strings.Contains(text, commit) {
		t.Errorf("refused: %s", text)
	}
	for _, path := range []string{"acme/secret", "acme/nothing"} {
		if resp, body := l.get(l.docs, path); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "not watched") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}

// TestOperatorSeesAllRepositories compares the responses of a process with open endpoints and of a reader.
func TestOperatorSeesAllRepositories(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.sync("acme/widgets", "", "docs")
	l.cfg.Reading.Repos = reposOf(l.client)
	paths := []string{"", "?limit=1", "?limit=x", "?after=x", "/acme/widgets", "/acme/none", "/acme%2Fwidgets"}
	answers := func(token string, header ...string) (all []string) {
		t.Helper()
		for _, path := range paths {
			resp, body := l.request(token, strings.TrimSuffix(l.url, "/")+path, header...)
			all = append(all, fmt.Sprint(path, " ", resp.Status, " ", body))
		}
		return all
	}
	reader := answers("operator")
	for _, answer := range answers("") {
		if !strings.Contains(answer, "401") {
			t.Errorf("a reader without a token: %s", answer)
		}
	}
	if !strings.Contains(reader[0], `"acme/widgets"`) || !strings.Contains(reader[4], `"last_results"`) {
		t.Errorf("%s", reader)
	}
	open := l.cfg
	open.Repos = l.cfg.Reading.Repos
	l.cfg = open
	l.serve()
	if got := answers("operator"); !slices.Equal(got, reader) {
		t.Errorf("got  %s\nwant %s", got, reader)
	}
	if got := answers(""); !slices.Equal(got, reader) {
		t.Errorf("without a token: %s\nwant %s", got, reader)
	}
	if page := l.list(l.docs, ""); len(page.Repos) != 1 || page.Repos[0].Git == "" {
		t.Errorf("an app at a process with open endpoints: %+v", page)
	}
	for _, path := range []string{"", "/acme/widgets"} {
		if resp, body := l.request("lockstep_removed", strings.TrimSuffix(l.url, "/")+path); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s with an unknown token: %s %s", path, resp.Status, body)
		}
	}
}

// TestListsAreLimited occupies the lists of an app with a Redis that does not answer.
func TestListsAreLimited(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	slow := &waiting{begun: make(chan struct{}, 8), proceed: make(chan struct{})}
	reader := *l.cfg.Reading.Reader
	slow.Watches, reader.Watches = reader.Watches, slow
	l.cfg.Reading = &server.Reading{Tokens: l.cfg.Reading.Tokens, Reader: &reader, Feed: l.cfg.Reading.Feed}
	l.serve()
	done := make(chan int)
	for range 4 {
		go func() {
			resp, _ := l.request(l.docs, strings.TrimSuffix(l.url, "/"))
			done <- resp.StatusCode
		}()
		<-slow.begun
	}
	for _, path := range []string{"", "/acme/widgets"} {
		if resp, body := l.request(l.docs, strings.TrimSuffix(l.url, "/")+path); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	close(slow.proceed)
	for range 4 {
		if status := <-done; status != http.StatusOK {
			t.Error(status)
		}
	}
	_ = l.list(l.docs, "")
}

// waiting are watches that wait until proceed is closed.
type waiting struct {
	access.Watches
	begun, proceed chan struct{}
}

func (w *waiting) ReposOf(ctx context.Context, q watch.Query) (watch.AppPage, error) {
	select {
	case w.begun <- struct{}{}:
	default:
	}
	<-w.proceed
	return w.Watches.ReposOf(ctx, q)
}
