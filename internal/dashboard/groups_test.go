package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/events"
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
		"?repo=WIDG": "3 1", "?outcome=failed": "1 1", "?outcome=failed&repo=widgets": "0 0", "?app=ci": "1 1", "?outcome=bogus": "0 0", "?class=auth": "1 1", "?class=network": "0 0", "?n=2": "0 0", "": "4 2", "?repo=%3Cscript%3E": "0 0",
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

func TestResultHasAPage(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	result := synced(t, "acme/widgets")
	result.Files = []events.File{{Path: "docs/" + evil, Status: events.FileAdded}}
	entry := d.settle(result, time.Second)
	list := d.page("/dashboard/results?app=docs", bearer)
	if !strings.Contains(list, `href="/dashboard/result?id=`+entry+`"`) || strings.Contains(d.page("/dashboard/results", nil), "/dashboard/result?") {
		t.Errorf("want a link to the result, for admins only: %s", list)
	}
	page := d.page("/dashboard/result?id="+entry, bearer)
	for _, want := range []string{result.After, "<h2>Notifications</h2>", "<h2>Files</h2>", `/dashboard/results?repo=acme%2Fwidgets`, entry} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
	if found := findHarm(t, page); len(found) > 0 {
		t.Errorf("the page contains %q", found)
	}
	if resp, _ := d.visit("GET", "/dashboard/result?id=1-1", nil, bearer); resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown: %d", resp.StatusCode)
	}
	if resp, _ := d.visit("GET", "/dashboard/result?id="+entry, nil, http.Header{"X-Forwarded-For": {"192.0.2.1"}}); resp.StatusCode == http.StatusOK {
		t.Errorf("an anonymous visitor sees it: %d", resp.StatusCode)
	}
}
