package dashboard

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/intake"
)

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
