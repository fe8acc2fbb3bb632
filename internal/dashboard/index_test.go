package dashboard

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/operate"
)

// keep stores the state of a repository that was last synced some time ago.
func (d *desk) keep(name string, age time.Duration, fields ...any) {
	d.t.Helper()
	values := append([]any{"repo", name, "synced", time.Now().Add(-age).UTC().Format(time.RFC3339Nano)}, fields...)
	if err := d.client.HSet(d.t.Context(), events.DefaultNamespace.Repo(mustRepo(d.t, name)), values...).Err(); err != nil {
		d.t.Fatal(err)
	}
}

// listed returns the names of the repositories on a page, in order.
func listed(page string) string {
	var names []string
	for _, row := range regexp.MustCompile(`<tr id="p-([^"]*)"`).FindAllStringSubmatch(page, -1) {
		names = append(names, row[1])
	}
	return strings.Join(names, " ")
}

func TestRepositoriesAreSearchedSortedAndCounted(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(cfg *Config) {
		cfg.Size = func(repo events.RepoPath) (int64, bool) { return int64(len(repo.String())), true }
	})
	d.keep("acme/Widgets", time.Hour)
	d.keep("acme/docs", time.Minute, "trouble", `{"all":{"repo":{"scope":"repo","failures":2,"class":"network","at":"`+time.Now().UTC().Format(time.RFC3339)+`"}}}`)
	d.keep("tools/widget-maker", 2*time.Hour)
	d.keep("zoo/long-name-of-a-repository", time.Second)
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(mustRepo(t, "acme/new")), "repo", "acme/new", "trouble", `{"all":{"repo":{"scope":"repo","failures":1}}}`).Err(); err != nil {
		t.Fatal(err)
	}
	d.page("/dashboard/repos?sort=name", nil) // waits for the index
	for query, want := range map[string]string{
		"":                    "acme/docs acme/new acme/Widgets tools/widget-maker zoo/long-name-of-a-repository",
		"?q=WIDGET":           "acme/Widgets tools/widget-maker",
		"?prefix=acme/w":      "acme/Widgets",
		"?q=*":                "",
		"?state=failing":      "acme/docs acme/new",
		"?state=never":        "acme/new",
		"?state=removed":      "",
		"?sort=failures&q=o":  "acme/docs tools/widget-maker zoo/long-name-of-a-repository",
		"?sort=newest":        "zoo/long-name-of-a-repository acme/docs acme/Widgets tools/widget-maker acme/new",
		"?sort=oldest&q=acme": "acme/new acme/Widgets acme/docs",
		"?sort=size":          "zoo/long-name-of-a-repository tools/widget-maker acme/Widgets acme/docs acme/new",
		"?sort=bogus&q=zo":    "zoo/long-name-of-a-repository",
		"?state=network":      "acme/docs",
		"?state=bogus":        "",
		"?n=0":                "acme/docs acme/new acme/Widgets tools/widget-maker zoo/long-name-of-a-repository",
		"?n=99999999999":      "acme/docs acme/new acme/Widgets tools/widget-maker zoo/long-name-of-a-repository",
	} {
		page := d.page("/dashboard/repos"+query, nil)
		if got := listed(page); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
		if !strings.Contains(page, "<strong>5</strong> repositories") || !strings.Contains(page, ">2 failing</a>") || !strings.Contains(page, ">1 never synced</a>") {
			t.Errorf("%s: wrong totals", query)
		}
	}
}

func TestRepositoriesArePaged(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	const all = 2*listShown + 7
	for i := range all {
		d.keep(fmt.Sprintf("acme/r%03d", i), time.Duration(i)*time.Minute)
	}
	seen := map[string]bool{}
	next, pages := "/dashboard/repos?sort=oldest", 0
	for ; next != "" && pages < 10; pages++ {
		page := d.page(next, nil)
		for _, name := range strings.Fields(listed(page)) {
			seen[name] = true
		}
		_, after, _ := strings.Cut(page, `id="next" class="button" href="`)
		next, _, _ = strings.Cut(after, `"`)
		next = strings.ReplaceAll(next, "&amp;", "&")
	}
	if pages != 3 || len(seen) != all {
		t.Errorf("%d repositories on %d pages, want %d on 3", len(seen), pages, all)
	}
	if page := d.page("/dashboard/repos?n=2&sort=oldest", nil); !strings.Contains(page, "51 to 100 shown") || !strings.HasPrefix(listed(page), "acme/r056") {
		t.Errorf("the second page shows %s", listed(page))
	}
	// The stream of the page's parts has the same rows: its own parameter page must not be one of the list's.
	f := d.follow("page=repos&n=2&sort=oldest", nil)
	if part := f.await("repos", "51 to 100 shown"); !strings.HasPrefix(listed(part.content), "acme/r056") {
		t.Errorf("the stream shows %s", listed(part.content))
	}
}

// TestListWithoutAnIndex: too many repositories, or an index that is still being built, leave the list unsorted but usable.
func TestListWithoutAnIndex(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for i := range listShown + 10 {
		d.keep(fmt.Sprintf("acme/r%03d", i), time.Minute)
	}
	d.board.index.limit = 10
	d.keep("zoo/last", time.Minute)
	if page := d.page("/dashboard/repos?q=zoo", nil); listed(page) != "zoo/last" || !strings.Contains(page, "too many repositories") {
		t.Errorf("beyond the limit: %s", listed(page))
	}
	slow := make(chan struct{})
	d.board.index = &repoIndex{start: d.board.hub.run, limit: maxIndexed, page: func(
		ctx context.Context, prefix, after string, limit int,
	) (operate.RepoPage, error) {
		select {
		case <-slow:
		case <-ctx.Done():
		}
		return d.board.cfg.Repos.Page(ctx, prefix, after, limit)
	}}
	first := d.page("/dashboard/repos", nil)
	if n := len(strings.Fields(listed(first))); n < listShown || strings.Contains(first, "</strong> repositories") {
		t.Errorf("%d repositories while they are counted, want a page of %d without totals", n, listShown)
	}
	close(slow)
	if page := d.page("/dashboard/repos?sort=name", nil); !strings.Contains(page, "<strong>61</strong> repositories") {
		t.Error("no totals once they are counted")
	}
}
