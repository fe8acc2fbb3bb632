package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func mustRepo(t *testing.T, name string) events.RepoPath {
	t.Helper()
	repo := testenv.Must(events.ParseRepoPath(name))(t)
	return repo
}

// watchOf adds a watch.
func (d *desk) watchOf(app, repo string) {
	d.t.Helper()
	w, err := watch.New(watch.Watch{App: app, URL: "https://example.org/" + repo + ".git"})
	if err == nil {
		_, err = watch.NewRegistry(d.client, events.DefaultNamespace).Put(d.t.Context(), w)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func TestRepositoryPageTellsWhyAnAppIsBehind(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.watchOf("docs", "acme/widgets")
	d.watchOf("other", "acme/widgets-2")
	older, newer := strings.Repeat("1", 40), strings.Repeat("2", 40)
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(mustRepo(t, "acme/widgets")), "repo", "acme/widgets", "head:refs/heads/main", newer,
		"given:refs/heads/main:docs", older, "given:refs/heads/main:ci", newer, "given:refs/heads/main:search", newer).Err(); err != nil {
		t.Fatal(err)
	}
	d.settle(synced(t, "acme/widgets-2"), time.Second)
	result := synced(t, "ACME/widgets")
	result.After, result.Tree = newer, "trees/the-tree"
	d.settle(result, time.Second)
	d.bury("attempts", "no", map[string]string{"repo": "acme/widgets"})
	d.bury("attempts", "no", map[string]string{"repo": "acme/others"})
	if admins := d.page("/dashboard/repo?repo=acme/widgets", bearer); !strings.Contains(admins, "trees/the-tree") {
		t.Error("admins do not see the tree")
	}
	page := d.page("/dashboard/repo?repo=acme/widgets", nil)
	for _, want := range []string{`<span class="badge warn">behind</span>`, `<span class="badge ok">up to date</span>`, "<h2>Dead letters</h2>"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	for part, want := range map[string]int{`<tr id="r-`: 1, `<tr id="w-`: 1, `<tr id="d-`: 1, `id="sync"`: 0, "trees/the-tree": 0} {
		if n := strings.Count(page, part); n != want {
			t.Errorf("%s %d times, want %d", part, n, want)
		}
	}
}

// TestWatchedRepositoryHasAPageBeforeItsFirstSync: an app's owner looks for it right after adding the watch.
func TestWatchedRepositoryHasAPageBeforeItsFirstSync(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.watchOf("docs", "acme/widgets")
	page := d.page("/dashboard/repo?repo=Acme/Widgets", nil)
	if !strings.Contains(page, "never") || !strings.Contains(page, `<tr id="w-docs-"`) {
		t.Errorf("no watch of a repository that was never synced: %s", page)
	}
	if resp, _ := d.visit("GET", "/dashboard/repo?repo=acme/widget", nil, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a part of its name: %d, want 404", resp.StatusCode)
	}
}

func TestSyncNow(t *testing.T) {
	t.Parallel()
	var published []events.Change
	var fails error
	d := startDesk(t, func(cfg *Config) {
		cfg.Publish = func(_ context.Context, c events.Change) (string, error) {
			published = append(published, c)
			return "1-0", fails
		}
	})
	d.watchOf("docs", "acme/watched")
	d.watchOf("docs", "acme/known-too")
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(mustRepo(t, "acme/known")), "repo", "acme/known", "url", "https://example.org/acme/known.git").Err(); err != nil {
		t.Fatal(err)
	}
	cookie, csrf := d.logIn()
	post := func(repo, csrf string, header http.Header) *http.Response {
		t.Helper()
		resp, _ := d.visit("POST", "/dashboard/repo/sync", url.Values{"repo": {repo}, "csrf": {csrf}}, header)
		return resp
	}
	for name, tc := range map[string]struct {
		repo, csrf string
		header     http.Header
		status     int
	}{
		"without a login":      {"acme/watched", csrf, nil, http.StatusUnauthorized},
		"without CSRF":         {"acme/watched", "", cookie, http.StatusForbidden},
		"of an invalid path":   {"acme/..", csrf, cookie, http.StatusBadRequest},
		"of an unknown remote": {"acme/none", csrf, cookie, http.StatusConflict},
	} {
		if resp := post(tc.repo, tc.csrf, tc.header); resp.StatusCode != tc.status || len(published) != 0 {
			t.Errorf("%s: %d, want %d; published %v", name, resp.StatusCode, tc.status, published)
		}
	}
	for repo, want := range map[string]events.ChangeType{"acme/watched": events.ChangeDue, "acme/known": events.ChangePushed} {
		resp := post(repo, csrf, cookie)
		if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/dashboard/repo?repo="+url.QueryEscape(repo) {
			t.Errorf("%s: %d to %s", repo, resp.StatusCode, resp.Header.Get("Location"))
		}
		if last := published[len(published)-1]; last.Type != want || last.Repo.String() != repo || last.OnBusy != events.BusyWait {
			t.Errorf("%s: published %+v, want a %s", repo, last, want)
		}
	}
	if !strings.Contains(d.log.String(), `msg="sync requested on the dashboard" by=token repo=acme/watched`) {
		t.Error("the log does not name the user")
	}
	fails = errors.New("no")
	if resp := post("acme/watched", csrf, cookie); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("failed: %d, want 503", resp.StatusCode)
	}
}

func TestSyncNowNeedsAReceiver(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	if resp, text := d.visit("POST", "/dashboard/repo/sync", url.Values{"repo": {"acme/widgets"}}, bearer); resp.StatusCode != http.StatusConflict || !strings.Contains(text, "receiver") {
		t.Errorf("%d, want 409: %s", resp.StatusCode, text)
	}
}

func TestHistoryOfARepository(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	h, topic, repo := d.board.histories, events.DefaultNamespace.Results(), mustRepo(t, "acme/widgets")
	first := d.settle(synced(t, "acme/widgets"), time.Second)
	d.settle(synced(t, "acme/widgets2"), time.Second)
	second := d.settle(synced(t, "Acme/Widgets"), time.Second)
	d.settle(synced(t, "acme/other"), time.Second)
	now, err := h.of(t.Context(), topic, repo)
	if err != nil || len(now.results) != 2 || now.results[0].Entry != second || now.results[1].Entry != first || !now.since.IsZero() {
		t.Errorf("%+v, %v; want %s and %s", now, err, second, first)
	}
	for range historyShown {
		d.settle(synced(t, "acme/widgets"), time.Second)
	}
	if now, err := h.of(t.Context(), topic, repo); err != nil || len(now.results) != historyShown || now.results[historyShown-1].Entry == second {
		t.Errorf("%d results, want the newest %d: %v", len(now.results), historyShown, err)
	}
}

// TestTroubleOfACredentialIsShownByItsScope names the credential to admins only, and does not call a closed circuit well beside it.
func TestTroubleOfACredentialIsShownByItsScope(t *testing.T) {
	t.Parallel()
	d, now := startDesk(t, nil), time.Now()
	d.keep("acme/widgets", time.Minute, "trouble", `{"repo":"acme/widgets","all":{"credential:robot:docs":{"scope":"credential","app":"docs","operation":"sync",`+
		`"class":"auth","job":"j","credential":"robot","failures":3,"at":"`+now.UTC().Format(time.RFC3339)+`"}}}`)
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Failing(), "acme/widgets", now.UnixMilli()).Err(); err != nil {
		t.Fatal(err)
	}
	if page := d.page("/", bearer); !strings.Contains(page, "auth, credential robot: 1 repository, acme/widgets") {
		t.Error("the verdict does not name the credential")
	}
	if page := d.page("/", nil); !strings.Contains(page, "auth: 1 repository, acme/widgets") || strings.Contains(page, "robot") {
		t.Error("visitors see no verdict, or the credential")
	}
	for _, path := range []string{"/dashboard/repos", "/dashboard/repo?repo=acme/widgets"} {
		if page := d.page(path, nil); strings.Contains(page, ">closed<") || !strings.Contains(page, `<span class="of failed">3`) {
			t.Errorf("%s: a closed circuit, or no failures", path)
		}
	}
}

// TestRemoteThatWasNotAskedIsUnchecked has an answer that is older than the poll interval.
func TestRemoteThatWasNotAskedIsUnchecked(t *testing.T) {
	t.Parallel()
	d, old := startDesk(t, nil), time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	d.watchOf("docs", "acme/widgets")
	d.keep("acme/widgets", time.Hour, "head:refs/heads/main", "c1", "given:refs/heads/main:docs", "c1", "answered", old)
	if page := d.page("/dashboard/repo?repo=acme/widgets", nil); !strings.Contains(page, `<span class="badge ok">up to date</span>`) {
		t.Error("it is not up to date before it is polled")
	}
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Watches()+"of:acme/widgets", "every", 60_000).Err(); err != nil {
		t.Fatal(err)
	}
	page := d.page("/dashboard/repo?repo=acme/widgets", nil)
	if !strings.Contains(page, `<span class="badge warn">unchecked</span>`) || !strings.Contains(page, "longer ago than the poll interval") || strings.Contains(page, "up to date") {
		t.Errorf("not unchecked: %s", page)
	}
}
