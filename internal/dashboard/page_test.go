package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

var someBusy = []state.Activity{{Repo: "acme/widgets", Worker: "w1", Operation: "sync", Since: time.Now(), Fence: 7,
	Progress: events.Progress{Phase: events.PhaseFetch, Done: 3 << 20, Total: 6 << 20, Unit: "bytes"}}}

const evil = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>`

// addHostileData puts hostile text into every field that outsiders can influence.
func (d *desk) addHostileData() {
	d.t.Helper()
	d.bury(evil, evil, map[string]string{"repo": evil, evil: "x"})
	change, err := events.NewChange(events.Change{ID: "c1", URL: "https://example.org/acme/widgets.git", App: "docs"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.bury("failed", evil+strings.Repeat("long ", 1000), map[string]string{"_watermill_message_uuid": evil, "payload": asJSON(d.t, change)})
	d.lease("acme/widgets", evil, evil)
	failed := synced(d.t, "acme/widgets")
	failed.Type, failed.Class, failed.Error, failed.Source = events.ResultFailed, events.Class(evil), evil+"\u202e\r\nevent: status\n", "/lockstep/worker/"+evil
	d.settle(failed, time.Second)
	d.ask(evil+"\u202e.example", "acme/widgets", evil+"-secret-credential", http.StatusTooManyRequests)
	w, err := watch.New(watch.Watch{App: "docs", URL: "https://example.org/acme/widgets.git", NotifyURL: "https://hooks.example.org/secret-path", NotifySecret: "signing", Paths: []string{"<script>"}})
	if err != nil {
		d.t.Fatal(err)
	}
	testenv.Must(watch.NewRegistry(d.client, events.DefaultNamespace).Put(d.t.Context(), w))(d.t)
	if err := d.client.HSet(d.t.Context(), events.DefaultNamespace.Repo(w.Repo), "repo", "acme/widgets", "url", "https://example.org/"+evil,
		"synced", time.Now().Format(time.RFC3339Nano), "head:"+evil, evil, "given:refs/heads/main:"+evil, evil, "trouble", `{"all":{"repo":{"scope":"repo","failures":3}}}`).Err(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) everyPage() []string {
	pages := []string{"/", "/dashboard/leases", "/dashboard/dead", "/dashboard/repos", "/dashboard/watches", "/dashboard/repo?repo=acme/widgets",
		"/dashboard/results", "/dashboard/workers", "/dashboard/hosts", "/dashboard/outbox", "/dashboard/webhooks", "/dashboard/results?repo=" + url.QueryEscape(evil), "/dashboard/repos?q=" + url.QueryEscape(evil),
		"/dashboard/login", "/dashboard/dead?reason=" + url.QueryEscape(evil), "/dashboard/repos?prefix=" + url.QueryEscape(evil)}
	for _, e := range d.client.XRange(d.t.Context(), events.DefaultNamespace.Dead(), "-", "+").Val() {
		pages = append(pages, "/dashboard/dead/letter?id="+e.ID, "/dashboard/dead/drop?id="+e.ID)
	}
	return pages
}

// findHarm returns the parts of a page that could execute code or link to other sites.
func findHarm(t *testing.T, page string) (found []string) {
	t.Helper()
	root := testenv.Must(html.Parse(strings.NewReader(page)))(t)
	for node := range root.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		source := ""
		for _, a := range node.Attr {
			local := strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, "#")
			switch {
			case a.Key == "src":
				source = a.Val
				fallthrough
			case a.Key == "href" || a.Key == "action" || strings.HasPrefix(a.Key, "hx-get") || a.Key == "sse-connect":
				if !local {
					found = append(found, node.Data+" "+a.Key+"="+a.Val)
				}
			case strings.HasPrefix(a.Key, "on") || a.Key == "style" || strings.HasPrefix(a.Key, "hx-on"):
				found = append(found, node.Data+" "+a.Key+"="+a.Val)
			}
		}
		switch node.Data {
		case "script", "img":
			if !strings.HasPrefix(source, "/dashboard/static/") {
				found = append(found, node.Data)
			}
		case "style", "iframe", "object", "embed", "base":
			found = append(found, node.Data)
		}
	}
	if strings.ContainsAny(page, "\u202e\r\x00") {
		found = append(found, "a control or text-direction character")
	}
	return found
}

func TestHostileTextIsEscaped(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.addHostileData()
	for who, header := range map[string]http.Header{"anonymous": nil, "admin": bearer} {
		for _, page := range d.everyPage() {
			resp, text := d.visit("GET", page, nil, header)
			if found := findHarm(t, text); len(found) > 0 {
				t.Errorf("%s as %s contains %q", page, who, found)
			}
			if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusSeeOther && resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %d", page, resp.StatusCode)
			}
			if len(text) > 60_000 {
				t.Errorf("%s is %d bytes long", page, len(text))
			}
			for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
				"Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin", "X-Frame-Options": "DENY"} {
				if got := resp.Header.Get(name); got != want {
					t.Errorf("%s: %s is %q, want %q", page, name, got, want)
				}
			}
		}
	}
	f := d.follow("page=overview", bearer)
	f.await("results", "&lt;script&gt;alert(1)")
}

func TestAnonymousVisitorsSeeOnlyPublicData(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.addHostileData()
	withError := synced(t, "acme/secret")
	withError.Type, withError.Class, withError.Error = events.ResultFailed, events.ClassBusy, "the-text-of-an-error"
	d.settle(withError, time.Second)
	hidden := []string{"the-text-of-an-error", "hooks.example.org", "signing", "https://example.org/acme/widgets.git", `name="csrf"`, "danger", "<dialog", "-secret-credential"}
	everything := ""
	for _, page := range d.everyPage() {
		if strings.Contains(page, "/dead/") {
			if resp, _ := d.visit("GET", page, nil, nil); resp.StatusCode != http.StatusSeeOther || !strings.HasPrefix(resp.Header.Get("Location"), "/dashboard/login?next=") {
				t.Errorf("%s: %d to %s, want the login", page, resp.StatusCode, resp.Header.Get("Location"))
			}
			continue
		}
		text := d.page(page, nil)
		for _, secret := range hidden {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s to anonymous visitors", page, secret)
			}
		}
		if page != "/dashboard/login" { // redirects admins
			everything += d.page(page, bearer)
		}
	}
	for _, secret := range hidden {
		if secret != `name="csrf"` && !strings.Contains(everything, secret) {
			t.Errorf("no page shows %s to admins", secret)
		}
	}
	f := d.follow("page=overview", nil)
	if p := f.await("results", "acme/secret"); strings.Contains(p.content, "the-text-of-an-error") {
		t.Error("the event stream shows an error to anonymous visitors")
	}
	g := d.follow("page=watches", nil)
	if p := g.await("watches", "acme/widgets"); strings.Contains(p.content, "hooks.example.org") {
		t.Error("the event stream shows a notification URL to anonymous visitors")
	}
}

func TestListPaginationAndFilters(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for i := range lettersShown + 5 {
		d.bury("failed", fmt.Sprintf("error %d.", i), map[string]string{"repo": "acme/widgets"})
	}
	d.bury("malformed", "the odd one", map[string]string{"repo": "acme/other"})
	first := d.page("/dashboard/dead?reason=failed", nil)
	if strings.Contains(first, "the odd one") || strings.Count(first, "<tr id=") != lettersShown {
		t.Errorf("%d letters of one reason on a page, want %d", strings.Count(first, "<tr id="), lettersShown)
	}
	_, after, _ := strings.Cut(first, `id="next" class="button" href="`)
	next, _, _ := strings.Cut(after, `"`)
	if second := d.page(strings.ReplaceAll(next, "&amp;", "&"), bearer); strings.Count(second, "<tr id=") != 5 || !strings.Contains(second, "error 0.") {
		t.Errorf("%d on the next page, want 5", strings.Count(second, "<tr id="))
	}
	if page := d.page("/dashboard/dead?repo=acme/other", nil); strings.Count(page, "<tr id=") != 1 {
		t.Error("the filter by repository does not find the one")
	}
	for _, query := range []string{"dead?repo=acme/..", "dead?after=x", "repos?after=x", "watches?after=x", "repo?repo=x"} {
		if resp, _ := d.visit("GET", "/dashboard/"+query, nil, nil); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d, want 400", query, resp.StatusCode)
		}
	}
	if resp, _ := d.visit("GET", "/dashboard/repo?repo=acme/unknown", nil, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown repository: %d, want 404", resp.StatusCode)
	}
}

func TestInvalidDataIsNotReportedAsRedisOutage(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.addHostileData()
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Watches()+"of:acme/widgets", "docs ", `{"app":"docs","from":"the future"}`).Err(); err != nil {
		t.Fatal(err)
	}
	for who, header := range map[string]http.Header{"": nil, "docs": bearer} {
		resp, text := d.visit("GET", "/dashboard/watches", nil, header)
		if resp.StatusCode != http.StatusServiceUnavailable || strings.Contains(text, "Redis does not answer") || !strings.Contains(text, "could not be read") {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if details := strings.Contains(text, "by app &#34;docs&#34;"); details != (who != "") {
			t.Errorf("the page for %q shows which watch is invalid: %v", who, details)
		}
	}
}

func TestLongTextsAreClippedCheaply(t *testing.T) {
	d := startDesk(t, nil)
	long := strings.Repeat("\u202elong", 200<<10)
	for range 3 {
		d.bury(long, long, map[string]string{"repo": long, long: "x"})
	}
	fields := map[string]string{}
	for i := range 5000 {
		fields[fmt.Sprint("field-", i)] = "x"
	}
	d.bury("malformed", "no", fields)
	for _, path := range d.everyPage() {
		if _, text := d.visit("GET", path, nil, bearer); len(text) > 60_000 {
			t.Errorf("%s is %d bytes long", path, len(text))
		}
	}
	if n := testing.AllocsPerRun(5, func() { clip(40, long) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
	if got := clip(3, long); got != "\ufffdl…" {
		t.Errorf("%q", got)
	}
}

func TestRedirectsAfterLoginAndActions(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for path, want := range map[string]string{
		"/dashboard/leases/release": "/dashboard/login?next=%2Fdashboard%2Fleases", "/dashboard/dead/retry": "/dashboard/login?next=%2Fdashboard%2Fdead",
		"/dashboard/logout": "/dashboard/login",
	} {
		if _, text := d.visit("POST", path, url.Values{}, nil); strings.Count(text, `href="`+want+`"`) != 3 {
			t.Errorf("%s: the login links do not lead back to the list: %s", path, text)
		}
	}
	cookie, csrf := d.logIn()
	for referer, want := range map[string]string{
		d.url + "/dashboard/dead?reason=failed&repo=acme%2Fwidgets": "/dashboard/dead?reason=failed&repo=acme%2Fwidgets",
		d.url + "/dashboard/dead/letter?id=1-0":                     "/dashboard/dead", "https://evil.example//x": "/dashboard/dead", "": "/dashboard/dead",
	} {
		id := d.bury("malformed", "no", map[string]string{"repo": "acme/widgets"})
		header := cookie.Clone()
		header.Set("Referer", referer)
		if resp, text := d.visit("POST", "/dashboard/dead/drop", url.Values{"id": {id}, "csrf": {csrf}}, header); resp.Header.Get("Location") != want {
			t.Errorf("from %s to %s %s, want %s", referer, resp.Header.Get("Location"), text, want)
		}
	}
}

func TestRetryAndDropDeadLetters(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	cookie, csrf := d.logIn()
	change := testenv.Must(events.NewChange(events.Change{ID: "c1", URL: "https://example.org/acme/widgets.git"}))(t)
	fields := map[string]string{"_watermill_message_uuid": "c1", "payload": asJSON(t, change)}
	first, second := d.bury("failed", "no", fields), d.bury("failed", "no", fields)
	if page := d.page("/dashboard/dead/letter?id="+first, cookie); !strings.Contains(page, "https://example.org/acme/widgets.git") || !strings.Contains(page, `href="/dashboard/repo?repo=acme%2Fwidgets"`) {
		t.Error("the letter's page does not show its payload, or not lead to its repository")
	}
	for name, tc := range map[string]struct {
		path, id, csrf string
		header         http.Header
		status         int
	}{
		"retry without a login":  {"retry", first, csrf, nil, http.StatusUnauthorized},
		"retry without CSRF":     {"retry", first, "", cookie, http.StatusForbidden},
		"drop without CSRF":      {"drop", first, "", cookie, http.StatusForbidden},
		"drop without a login":   {"drop", first, csrf, nil, http.StatusUnauthorized},
		"retry of an invalid ID": {"retry", "x", csrf, cookie, http.StatusBadRequest},
		"retry of an unknown ID": {"retry", "1-0", csrf, cookie, http.StatusNotFound},
		"drop of an unknown ID":  {"drop", "1-0", csrf, cookie, http.StatusNotFound},
		"retry of an empty ID":   {"retry", "", csrf, cookie, http.StatusBadRequest},
	} {
		if resp, text := d.visit("POST", "/dashboard/dead/"+tc.path, url.Values{"id": {tc.id}, "csrf": {tc.csrf}}, tc.header); resp.StatusCode != tc.status {
			t.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, tc.status, text)
		}
	}
	if n := d.client.XLen(t.Context(), events.DefaultNamespace.Dead()).Val(); n != 2 {
		t.Fatalf("%d letters are left, want both", n)
	}
	resp, _ := d.visit("POST", "/dashboard/dead/retry", url.Values{"id": {first}, "csrf": {csrf}}, cookie)
	if n := d.client.XLen(t.Context(), events.DefaultNamespace.Changes()).Val(); resp.StatusCode != http.StatusSeeOther || n != 1 {
		t.Errorf("retried: %d, %d entries in the stream", resp.StatusCode, n)
	}
	note := http.Header{"Cookie": {cookie.Get("Cookie") + "; " + resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value}}
	if page := d.page("/dashboard/dead", note); !strings.Contains(page, "Dead letter "+first+" is back in its stream") {
		t.Error("the next page does not report the retry")
	}
	resp, _ = d.visit("POST", "/dashboard/dead/drop", url.Values{"id": {second}, "csrf": {csrf}}, cookie)
	if n := d.client.XLen(t.Context(), events.DefaultNamespace.Dead()).Val(); resp.StatusCode != http.StatusSeeOther || n != 0 {
		t.Errorf("dropped: %d, %d letters are left", resp.StatusCode, n)
	}
	for _, want := range []string{`msg="dead letter retried on the dashboard" by=token letter=` + first, `msg="dead letter dropped on the dashboard" by=token letter=` + second} {
		if !strings.Contains(d.log.String(), want) {
			t.Errorf("the log does not contain %s", want)
		}
	}
}

func TestUnreadableEntryShowsNoFieldValues(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	id := d.bury("malformed", "no", map[string]string{"repo": "acme/widgets", "url": "https://user:hunter2@example.org/"})
	if page := d.page("/dashboard/dead/letter?id="+id, bearer); strings.Contains(page, "hunter2") || !strings.Contains(page, "33 bytes") {
		t.Error("want the names and sizes of its fields, and no password")
	}
}

func TestVendoredFilesMatchTheirChecksums(t *testing.T) {
	list := testenv.Must(os.ReadFile("static/vendor/VENDOR.md"))(t)
	listed := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^\| (\S+\.(?:js|css|gz)) \| (\S+).*\| ([0-9a-f]{64}) \|$`).FindAllStringSubmatch(string(list), -1) {
		content := testenv.Must(os.ReadFile(path.Join("static/vendor", line[1])))(t)
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != line[3] {
			t.Errorf("%s has the checksum %x, want %s", line[1], sum, line[3])
		}
		listed[path.Base(line[1])] = true
	}
	files := testenv.Must(os.ReadDir("static/vendor"))(t)
	for _, file := range files {
		if ext := path.Ext(file.Name()); (ext == ".js" || ext == ".css") && !listed[file.Name()] {
			t.Errorf("%s is not listed", file.Name())
		}
	}
	if len(listed) != 5 {
		t.Errorf("%d files are listed, want 5", len(listed))
	}
}

func TestStaticFilesAreImmutable(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	where := testenv.Must(d.board.assets.url("app.css"))(t)
	resp, text := d.visit("GET", where, nil, http.Header{"Accept-Encoding": {"identity"}})
	if resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/css") || !strings.Contains(text, ":root") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := d.visit("GET", where, nil, http.Header{"If-None-Match": {resp.Header.Get("ETag")}, "Accept-Encoding": {"identity"}}); resp.StatusCode != http.StatusNotModified {
		t.Errorf("again: %d, want 304", resp.StatusCode)
	}
	if resp, _ := d.visit("GET", where, nil, http.Header{"Accept-Encoding": {"gzip"}}); resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("with gzip: %v", resp.Header)
	}
	if resp, _ := d.visit("GET", "/dashboard/static/of-another-version/app.css", nil, nil); resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-cache" {
		t.Errorf("with another version's hash: %d %v", resp.StatusCode, resp.Header)
	}
	for _, name := range []string{"vendor/VENDOR.md", "../templates/layout.html", "vendor/htmx.LICENSE", "", "vendor/"} {
		if resp, _ := d.visit("GET", "/dashboard/static/x/"+name, nil, nil); resp.StatusCode == http.StatusOK {
			t.Errorf("%q is served", name)
		}
	}
}

func TestTemplateFuncs(t *testing.T) {
	for got, want := range map[string]string{
		clip(5, "abcdef"): "abcd…", clip(5, "abcde"): "abcde", clip(9, "a\u202eb\x00c\u2028"): "a\ufffdb\ufffdc\ufffd",
		count(1234567): "1\u202f234\u202f567", count(-1234): "-1\u202f234", count(12): "12", count(0.25): "0.2", count(99.6): "100",
		size(512): "512\u00a0B", size(1536): "1.5\u00a0KiB", size(300 << 20): "300\u00a0MiB",
		formatDuration(31 * time.Millisecond): "31\u00a0ms", formatDuration(1500 * time.Millisecond): "1.5\u00a0s", formatDuration(3 * time.Minute): "3\u00a0min", formatDuration(72 * time.Hour): "3\u00a0d",
		link("/x", "a", "", "b", "c&d"): "/x?b=c%26d", link("/x"): "/x", refName("refs/heads/main"): "main", refName(""): "default branch",
		short(strings.Repeat("ab", 20)): "abababababab", short("ab"): "ab",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if percent(50, 200) != 25 || percent(5, 0) != 0 || percent(9, 3) != 100 {
		t.Error("a percentage is wrong")
	}
}
