package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"lockstep/events"
)

func TestRetryAllDeadLettersThatMatch(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for i := range 5 {
		change, err := events.NewChange(events.Change{ID: fmt.Sprint("c", i), URL: "https://example.org/acme/widgets.git", App: []string{"docs", "ci"}[i%2]})
		if err != nil {
			t.Fatal(err)
		}
		d.bury("attempts", "no", map[string]string{"_watermill_message_uuid": change.ID, "payload": asJSON(t, change)})
	}
	d.bury("attempts", "no", map[string]string{"payload": "{", "truncated": "x"})
	d.bury("malformed", "no", map[string]string{"payload": "{"})
	cookie, csrf := d.logIn()
	left := func() int64 { return d.client.XLen(t.Context(), events.DefaultNamespace.Dead()).Val() }

	if page := d.page("/dashboard/dead?reason=attempts&app=docs", cookie); strings.Count(page, `<tr id="d-`) != 3 || !strings.Contains(page, "<strong>7</strong> dead letters") ||
		!strings.Contains(page, `href="/dashboard/dead/retry-all?app=docs&amp;reason=attempts"`) {
		t.Errorf("the filter by app shows %d letters", strings.Count(page, `<tr id="d-`))
	}
	if page := d.page("/dashboard/dead/retry-all?app=docs&reason=attempts", cookie); !strings.Contains(page, "Retry 3 dead letters?") {
		t.Errorf("the question does not count the letters: %s", page)
	}
	for name, tc := range map[string]struct {
		csrf   string
		header http.Header
		form   url.Values
		status int
	}{
		"without a login":        {csrf, nil, url.Values{}, http.StatusUnauthorized},
		"without CSRF":           {"", cookie, url.Values{}, http.StatusForbidden},
		"of an invalid filter":   {csrf, cookie, url.Values{"repo": {"acme/.."}}, http.StatusBadRequest},
		"of an unknown app only": {csrf, cookie, url.Values{"app": {"none"}}, http.StatusSeeOther},
	} {
		tc.form.Set("csrf", tc.csrf)
		if resp, text := d.visit("POST", "/dashboard/dead/retry-all", tc.form, tc.header); resp.StatusCode != tc.status || left() != 7 {
			t.Errorf("%s: %d, want %d; %d letters are left: %s", name, resp.StatusCode, tc.status, left(), text)
		}
	}
	if page := d.page("/dashboard/dead?host=example.org", cookie); strings.Count(page, `<tr id="d-`) != 5 || !strings.Contains(page, `href="/dashboard/dead?host=example.org&amp;reason=attempts"`) {
		t.Errorf("the filter by host shows %d letters, or its links lose it", strings.Count(page, `<tr id="d-`))
	}
	resp, _ := d.visit("POST", "/dashboard/dead/retry-all", url.Values{"csrf": {csrf}, "app": {"docs"}, "host": {"example.org"}}, cookie)
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/dashboard/dead?app=docs&host=example.org" || left() != 4 {
		t.Errorf("of one app: %d to %s, %d letters are left, want 4", resp.StatusCode, resp.Header.Get("Location"), left())
	}
	if n := d.client.XLen(t.Context(), events.DefaultNamespace.Changes()).Val(); n != 3 {
		t.Errorf("%d entries in the stream, want 3", n)
	}
	if resp, _ = d.visit("POST", "/dashboard/dead/retry-all", url.Values{"csrf": {csrf}, "reason": {"attempts"}}, cookie); left() != 1 {
		t.Errorf("of one reason: %d, %d letters are left, want 1", resp.StatusCode, left())
	}
	if !strings.Contains(d.log.String(), `msg="dead letters retried on the dashboard" by=token letters=3 kept=0`) {
		t.Error("the log does not name the user and the number")
	}
}
