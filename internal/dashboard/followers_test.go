package dashboard

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/internal/feed"
)

// TestFollowersAreShown shows followers to admins: one that is revoked, one that is away and one of another version can be told.
func TestFollowersAreShown(t *testing.T) {
	t.Parallel()
	seen := time.Now().Add(-3 * time.Hour)
	const cursor = "MSBBQkNERUZHSElKS0xNTk9QIDE3OTUyMjM1MTEyMDEtNyAxMg" // of entry 1795223511201-7
	list := []feed.Follower{
		{Name: "away", App: "search", Seen: seen, LagMS: 2 * 3600 * 1000, State: feed.FollowerAway, Entry: "1795223511201-7", Report: feed.Report{Cursor: cursor, Repos: 1200, Behind: 3, Version: "v1"}},
		{Name: "new", App: "a<b", Seen: time.Now(), LagMS: -1, State: feed.FollowerFirst, Report: feed.Report{Version: "v0.9"}},
		{Name: "revoked", App: "search", Seen: seen, State: feed.FollowerRevoked},
		{Name: "good", Seen: time.Now(), State: feed.FollowerOK, Entry: "1795223511201-7", Report: feed.Report{Cursor: cursor, Repos: 7, Version: "v1"}},
	}
	d := startDesk(t, func(cfg *Config) { cfg.Followers = thoseOf(list) })
	if page := d.page("/", nil); strings.Contains(page, "<h2>Followers") || strings.Contains(page, "search") {
		t.Error("followers are shown to visitors")
	}
	text := d.follow("page=overview", bearer).await("followers", "good").content
	rows := map[string]string{}
	for row := range strings.SplitSeq(text, "<tr id=\"f-") {
		name, row, _ := strings.Cut(row, `"`)
		rows[name] = row
	}
	for name, wants := range map[string][]string{
		"search-away":    {`<span class="badge bad">away</span>`, "3 of 1\u202f200", ">2\u00a0h<", "<code>1795223511201-7</code>", seen.UTC().Format("2006-01-02T15:04"), ">v1<"},
		"a&lt;b-new":     {`<span class="badge warn">first copy</span>`, "0 of 0", ">unknown<", "v0.9", "other version"},
		"search-revoked": {`<span class="badge bad">revoked</span>`},
		"-good":          {`<span class="badge ok">ok</span>`, "0 of 7", ">0\u00a0ms<", "operator"},
	} {
		for _, want := range wants {
			if !strings.Contains(rows[name], want) {
				t.Errorf("%s: no %q in %q", name, want, rows[name])
			}
		}
		if strings.Contains(rows[name], "other version") != (name == "a&lt;b-new") {
			t.Errorf("%s: %s", name, rows[name])
		}
	}
}

func thoseOf(list []feed.Follower) func(context.Context) ([]feed.Follower, error) {
	return func(context.Context) ([]feed.Follower, error) { return list, nil }
}

func TestManyFollowersAreCut(t *testing.T) {
	t.Parallel()
	var list []feed.Follower
	for n := range followersShown + 5 {
		list = append(list, feed.Follower{Name: fmt.Sprint("node-", n), State: feed.FollowerOK})
	}
	page := startDesk(t, func(cfg *Config) { cfg.Followers = thoseOf(list) }).page("/", bearer)
	if n := strings.Count(page, `<tr id="f-`); n != followersShown || !strings.Contains(page, "and 5 more: ") {
		t.Errorf("%d followers, want %d: %s", n, followersShown, page)
	}
}
