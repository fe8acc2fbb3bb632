package dashboard

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/intake"
)

// TestWebhooksLinkOnlyPages shows webhooks of repositories that have a page, or none because of their name or because nobody
// watches them, and follows the links.
func TestWebhooksLinkOnlyPages(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.watchOf("docs", "acme/widgets")
	j := intake.NewJournal(d.client, events.DefaultNamespace)
	for repo, why := range map[string]string{
		"acme/widgets":                       "nobody watches refs/heads/dev of acme/widgets",
		"acme/others":                        "nobody watches acme/others",
		"https://git.example.com/a%2Fb":      "nobody watches https://git.example.com/a%2Fb",
		"https://git.example.com/~ada/w":     "",
		"acme/..":                            "",
		"acme/" + strings.Repeat("long", 70): "",
	} {
		r := intake.Received{Source: "hub", Outcome: intake.Ignored, Verified: true, Repo: repo, Why: why, Unwatched: !strings.Contains(why, " of ")}
		if why == "" {
			r.Outcome, r.Changes = intake.Accepted, 1
		}
		j.Record(r)
	}
	j.Close()
	page := d.page("/dashboard/webhooks", bearer)
	links := regexp.MustCompile(`<th scope="row"><a href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if rows := strings.Count(page, `<td data-l="Verdict">`); rows != 6 || len(links) != 1 {
		t.Fatalf("%d rows with %d links, want 6 with one: %q", rows, len(links), links)
	}
	if shown := d.page(html.UnescapeString(links[0][1]), bearer); !strings.Contains(shown, "acme/widgets") {
		t.Error("the link leads to no page of the repository")
	}
	if !strings.Contains(page, "acme/others") || !strings.Contains(page, "git.example.com/~ada/w") {
		t.Error("a repository without a page is not shown")
	}
}

func TestWebhooksAreShownToAdmins(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	j := intake.NewJournal(d.client, events.DefaultNamespace)
	for _, r := range []intake.Received{
		{Source: "hub", Outcome: intake.Accepted, Verified: true, Repo: "acme/widgets", Delivery: "d-1", Changes: 2},
		{Source: "hub", Outcome: intake.Duplicate, Verified: true, Repo: "acme/docs", Delivery: "d-2"},
		{Source: "hub", Outcome: intake.Ignored, Verified: true, Repo: "acme/widgets", Why: "nobody watches refs/heads/dev"},
		{Source: "hub", Outcome: "unauthorized", Why: "the signature is wrong"},
		{Source: evil, Outcome: "unknown", Why: evil + "\u202e"},
		{Source: "hub", Outcome: "unavailable", Verified: true, Why: "no disk"},
	} {
		j.Record(r)
	}
	j.Close()
	for query, want := range map[string]int{"": 6, "?verdict=refused": 3, "?verdict=ignored": 1, "?q=WIDG": 2, "?q=d-2": 1, "?verdict=accepted&q=widgets": 1, "?q=none": 0} {
		page := d.page("/dashboard/webhooks"+query, bearer)
		if n := strings.Count(page, `<td data-l="Verdict">`); n != want {
			t.Errorf("%s: %d webhooks, want %d", query, n, want)
		}
		if found := findHarm(t, page); len(found) > 0 {
			t.Errorf("%s contains %q", query, found)
		}
	}
	page := d.page("/dashboard/webhooks", bearer)
	for _, want := range []string{"the signature is wrong", "nobody watches refs/heads/dev", ">2 changes<", ">2 accepted<", ">1 ignored<", ">3 refused<"} {
		if !strings.Contains(strings.ReplaceAll(page, "</td>", "<"), want) {
			t.Errorf("no %q", want)
		}
	}
	if page := d.page("/dashboard/webhooks", nil); strings.Contains(page, "hub") || strings.Contains(page, fmt.Sprint(6)+" refused") {
		t.Error("visitors see webhooks")
	}
}
