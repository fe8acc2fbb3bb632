package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestResultsOfOneSyncShareARow(t *testing.T) {
	at := time.Date(2026, 11, 24, 1, 2, 3, 0, time.UTC)
	var results []settled // newest first
	add := func(age time.Duration, outcome, repo, app, after string) {
		results = append(results, settled{Entry: fmt.Sprint(len(results)), At: at.Add(-age), Outcome: outcome, Repo: repo, App: app, After: after})
	}
	add(0, "unchanged", "acme/a", "docs", "1")
	add(time.Second, "unchanged", "acme/b", "docs", "1")
	add(2*time.Second, "unchanged", "acme/a", "ci", "1")
	add(3*time.Second, "synced", "acme/a", "docs", "1")
	add(11*time.Second, "unchanged", "Acme/a", "docs", "1") // within 10 s of the one before
	add(time.Minute, "unchanged", "acme/a", "", "1")
	rows, more := groupResults(results, 10)
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprintf("%s-%s×%d[%s]", r.First, r.Entry, r.Count, strings.Join(r.Apps, " ")))
	}
	if want := "4-0×3[ci docs], 1-1×1[docs], 3-3×1[docs], 5-5×1[]"; strings.Join(got, ", ") != want || more {
		t.Errorf("rows %s, %v, want %s", strings.Join(got, ", "), more, want)
	}
	if rows, more := groupResults(results, 1); len(rows) != 1 || rows[0].Count != 3 || !more {
		t.Errorf("cut to %+v, %v, want the first row, complete", rows, more)
	}
}

func TestResultsAreFiltered(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	failed := synced(t, "acme/broken")
	failed.Type, failed.Class, failed.App = "lockstep.result.failed.v1", "auth", "ci"
	d.settle(failed, time.Second)
	for range 3 {
		d.settle(synced(t, "acme/widgets"), time.Second)
	}
	for path, want := range map[string]string{
		"?repo=WIDG": "3 1", "?outcome=failed": "1 1", "?outcome=failed&repo=widgets": "0 0", "?app=ci": "1 1", "?outcome=bogus": "0 0", "": "4 2", "?repo=%3Cscript%3E": "0 0",
	} {
		page := d.page("/dashboard/results"+path, bearer)
		rows, total := strings.Count(page, `<tr id="r-`), "0"
		if _, after, ok := strings.Cut(page, `<p class="sum"><strong>`); ok {
			total, _, _ = strings.Cut(after, "<")
		}
		if got := fmt.Sprint(total, " ", rows); got != want {
			t.Errorf("%s: results and rows %s, want %s", path, got, want)
		}
	}
	if page := d.page("/dashboard/results?app=ci", nil); strings.Contains(page, `<tr id="r-`) {
		t.Error("a visitor can find out the apps of results")
	}
	if page := d.page("/", bearer); !strings.Contains(page, ">×3</a>") || !strings.Contains(page, `data-l="App" class="name">docs`) {
		t.Error("the overview does not count the results of a row, or name their app")
	}
}
