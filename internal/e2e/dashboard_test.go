package e2e

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp/kb"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

func TestDashboardInBrowser(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t) // the browser needs the processor
	chromium := browser(t)
	b := startBoard(t)
	for _, repo := range []string{"acme/widgets", "acme/docs", "search/indexer"} {
		b.push(repo)
	}
	for _, f := range []struct {
		name string
		test func(t *testing.T, b *board, open func(t *testing.T) *tab)
	}{
		{"a live sync appears within a second", liveSync},
		{"a lease is released with the token", releaseWithToken},
		{"a lease is released by keyboard", releaseByKeyboard},
		{"a lease is released without JavaScript", releaseWithoutScript},
		{"dead letters are retried and dropped", retryAndDrop},
		{"failed requests show the reason", failedRequests},
		{"a hidden tab receives no updates", hiddenTab},
		{"login works without TLS", plainLogin},
		{"every page is accessible, on a phone, dark and light", everyPage},
		{"Redis goes down and comes back", redisAway},
	} {
		t.Run(f.name, func(t *testing.T) {
			b.t = t
			f.test(t, b, func(t *testing.T) *tab { return openTab(t, chromium, b.base) })
		})
	}
}

func liveSync(t *testing.T, b *board, open func(*testing.T) *tab) {
	page := open(t)
	page.open("/")
	page.live()
	// Measure in the page, from the time in the entry's ID: on this machine, Redis and the browser share a clock.
	var took []int
	for i := range 6 {
		repo := fmt.Sprintf("acme/live-%d", i)
		proctest.Must(b.git.Create(context.Background(), repo, map[string]string{"a": "1"}))(t)
		value[int](page, fmt.Sprintf(`window.seen = new Promise((resolve) => {
			const look = () => {
				const row = [...document.querySelectorAll("#results tr")].find((r) => r.querySelector("a")?.textContent === %q);
				if (row) { watch.disconnect(); resolve(Date.now() - Number(row.dataset.at)); }
			};
			const watch = new MutationObserver(look);
			watch.observe(document.getElementById("results"), {childList: true, subtree: true});
		}); 0`, repo))
		b.ask(repo)
		took = append(took, value[int](page, `window.seen`))
	}
	slices.Sort(took)
	t.Logf("results appear after %v ms", took)
	if best, most := took[0], margin().Milliseconds(); int64(best) > most {
		t.Errorf("the fastest result appears after %d ms, want at most %d", best, most)
	}
	page.await(`document.querySelectorAll("#throughput canvas").length === 1 && document.querySelectorAll("#latency canvas").length === 1`)
	page.await(`["#throughput", "#latency"].every((c) => !document.querySelector(c + " .u-legend").innerText.includes("–"))`)
}

// asAdmin logs in and opens a page.
func asAdmin(t *testing.T, open func(*testing.T) *tab, path string) *tab {
	page := open(t)
	page.open("/dashboard/login?" + url.Values{"next": {path}}.Encode())
	page.logIn(boardToken)
	page.await(fmt.Sprintf(`location.pathname + location.search === %q && document.readyState === "complete"`, path))
	return page
}

func releaseWithToken(t *testing.T, b *board, open func(*testing.T) *tab) {
	fence := b.stuck("acme/stuck")
	defer b.letGo("acme/stuck")
	page := asAdmin(t, open, "/dashboard/leases")
	page.live()
	button := fmt.Sprintf("#l-r-%d", fence)
	page.await(fmt.Sprintf(`document.querySelector(%q) !== null`, button))
	page.click(button)
	page.await(`document.getElementById("dialog").open`)
	if who := page.text(`document.getElementById("dialog").innerText`); !strings.Contains(who, "worker-1") || !strings.Contains(who, fmt.Sprint(fence)) {
		t.Errorf("the dialog does not name the holder: %s", who)
	}
	page.press(kb.Escape)
	page.await(`!document.getElementById("dialog").open && document.activeElement.matches(".danger")`)
	if b.lease("acme/stuck") != fence {
		t.Error("the lease was released without confirmation")
	}
	page.click(button)
	page.await(`document.getElementById("dialog").open`)
	page.click("#sure")
	page.await(`document.querySelector(".note")?.innerText.startsWith("Took the lease on acme/stuck away from worker-1")`)
	b.assertReleased("acme/stuck", fence)
	b.serve.AwaitLog("lease taken away on the dashboard")
	if !strings.Contains(b.serve.Log.String(), "by=token repo=acme/stuck") {
		t.Error("the log does not name the user")
	}
}

func releaseByKeyboard(t *testing.T, b *board, open func(*testing.T) *tab) {
	fence := b.stuck("acme/keys")
	defer b.letGo("acme/keys")
	page := asAdmin(t, open, "/dashboard/leases")
	page.live()
	button := fmt.Sprintf("#l-r-%d", fence)
	page.await(fmt.Sprintf(`document.querySelector(%q) !== null`, button))
	page.tabTo(".skip")
	page.tabTo(button)
	page.press(kb.Enter)
	page.await(`document.getElementById("dialog").open && document.activeElement.id === "cancel"`)
	page.tabTo("#sure")
	page.press(kb.Enter)
	page.await(`document.querySelector(".note")?.innerText.includes("acme/keys")`)
	b.assertReleased("acme/keys", fence)
}

func releaseWithoutScript(t *testing.T, b *board, open func(*testing.T) *tab) {
	fence := b.stuck("acme/plain")
	defer b.letGo("acme/plain")
	page := open(t)
	page.scripts(false)
	page.open("/dashboard/login?next=/dashboard/leases")
	page.logIn(boardToken)
	page.scripts(true) // to see that the page is complete: a click on one that is being laid out may miss
	page.await(`location.pathname === "/dashboard/leases" && document.readyState === "complete"`)
	page.scripts(false)
	page.open("/dashboard/leases")
	page.click(fmt.Sprintf("#l-r-%d", fence))
	page.click("#sure")
	page.scripts(true)
	page.await(`document.querySelector(".note")?.innerText.includes("acme/plain")`)
	b.assertReleased("acme/plain", fence)
}

// plainLogin uses HTTP with a host name that the browser does not trust, so that it sends an Origin header but no
// Sec-Fetch-Site.
func plainLogin(t *testing.T, b *board, open func(*testing.T) *tab) {
	page := open(t)
	page.base = strings.Replace(b.base, "127.0.0.1", plainHost, 1)
	page.expect("Cross-Origin-Opener-Policy header has been ignored")
	page.open("/dashboard/login?next=/dashboard/dead")
	page.logIn(boardToken)
	page.await(`location.pathname === "/dashboard/dead" && document.querySelector("form[action='/dashboard/logout']") !== null`)
	page.live()
	page.click("form[action='/dashboard/logout'] button")
	page.await(`document.querySelector(".note")?.innerText === "You are logged out."`)
}

func retryAndDrop(t *testing.T, b *board, open func(*testing.T) *tab) {
	first, second := b.letter("acme/retried"), b.letter("acme/dropped")
	page := asAdmin(t, open, "/dashboard/dead")
	page.live()
	page.await(fmt.Sprintf(`document.getElementById("d-r-%s") !== null`, first))
	page.click(fmt.Sprintf("[id='d-r-%s']", first))
	page.await(`document.querySelector(".note")?.innerText.includes("is back in its stream")`)
	proctest.Eventually(t, func() bool {
		return slices.ContainsFunc(resultsIn(t, b.client), func(r events.Result) bool {
			return r.Type == events.ResultSynced && r.Repo.String() == "acme/retried"
		})
	}, "a sync of acme/retried")

	page.open("/dashboard/dead/letter?id=" + second)
	if shown := page.text(`document.querySelector("pre").innerText`); !strings.Contains(shown, `"repo": "acme/dropped"`) {
		t.Errorf("the payload is %s", shown)
	}
	page.click("a.danger")
	page.await(`document.getElementById("dialog").open`)
	page.click("#sure")
	page.await(`document.querySelector(".note")?.innerText.includes("is dropped")`)
	if left := b.letters(); slices.Contains(left, first) || slices.Contains(left, second) {
		t.Errorf("letters %q are left, want neither %s nor %s", left, first, second)
	}
	// A new dead letter appears on the open page, and the filter hides the others.
	third := b.letter("acme/another")
	page.await(fmt.Sprintf(`document.getElementById("d-%s") !== null`, third))
	value[int](page, `window.streams = [], window.make = htmx.createEventSource, htmx.createEventSource = (url) => { const s = make(url); streams.push(s); return s; }, 0`)
	page.typing("input[name=repo]", "acme/widgets")
	page.await(fmt.Sprintf(`document.getElementById("d-%s") === null && location.search.includes("widgets")`, third))
	page.live()
	page.typing("input[name=reason]", "attempts")
	page.await(`streams.length > 1 && streams.at(-1).readyState === EventSource.OPEN && streams.slice(0, -1).every((s) => s.readyState === EventSource.CLOSED)`)
}

// failedRequests tries an invalid filter, and an expired session.
func failedRequests(t *testing.T, b *board, open func(*testing.T) *tab) {
	id := b.letter("acme/kept")
	page := asAdmin(t, open, "/dashboard/dead")
	page.live()
	page.expect("400")
	page.typing("input[name=repo]", "acme")
	page.await(`document.getElementById("alert").innerText.includes("acme")`)
	page.typing("input[name=repo]", "/kept")
	page.await(`document.getElementById("alert").innerText === "" && location.search.includes("kept")`)
	page.open("/dashboard/dead/letter?id=" + id)
	page.do(call(network.ClearBrowserCookies, cdp.Empty{}))
	page.click("a.danger")
	page.await(`location.pathname === "/dashboard/login" && document.getElementById("token") !== null`)
	page.logIn(boardToken)
	page.await(`location.pathname === "/dashboard/dead/drop" && document.getElementById("sure") !== null`)
}

// hiddenTab opens a tab in the background.
func hiddenTab(t *testing.T, _ *board, open func(*testing.T) *tab) {
	page := open(t)
	page.open("/dashboard/leases")
	page.live()
	value[int](page, `window.streams = [], window.make = htmx.createEventSource, htmx.createEventSource = (url) => { const s = make(url); streams.push(s); return s; }, 0`)
	hide := func(hidden bool) {
		value[int](page, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), 0`, hidden))
	}
	hide(true)
	value[int](page, `reload(), 0`)
	page.await(`streams.length === 1 && streams[0].readyState === EventSource.CLOSED && document.getElementById("live").dataset.state === "off"`)
	hide(false)
	value[int](page, `document.dispatchEvent(new Event("visibilitychange")), 0`)
	page.live()
	if n := page.text(`streams.filter((s) => s.readyState === EventSource.OPEN).length`); n != "1" {
		t.Errorf("%s streams are open, want the one", n)
	}
}

func everyPage(t *testing.T, b *board, open func(*testing.T) *tab) {
	b.stage()
	b.limitHost("a-host-with-a-long-name.git.example.com:8443")
	for _, repo := range []string{"platform/infrastructure", "acme/website"} {
		b.stuck(repo)
		defer b.letGo(repo)
	}
	fence := b.stuck("acme/monorepo")
	defer b.letGo("acme/monorepo")
	waiting := func() bool { // true once the other worker has read a change
		b.ask("acme/monorepo")
		return len(b.lock("acme/monorepo").Waiters) > 0
	}
	proctest.Eventually(t, waiting, "a waiter for acme/monorepo")
	ids := b.letters()
	latest := proctest.Must(b.client.XRevRangeN(t.Context(), events.DefaultNamespace.Results(), "+", "-", 1).Result())(t)[0].ID
	page := asAdmin(t, open, "/")
	for name, path := range map[string]string{
		"result": "/dashboard/result?id=" + latest, "overview": "/", "leases": "/dashboard/leases", "dead": "/dashboard/dead", "repos": "/dashboard/repos", "watches": "/dashboard/watches",
		"results": "/dashboard/results", "workers": "/dashboard/workers", "hosts": "/dashboard/hosts", "outbox": "/dashboard/outbox", "webhooks": "/dashboard/webhooks",
		"week": "/?range=7d", "repo": "/dashboard/repo?repo=acme/widgets", "letter": "/dashboard/dead/letter?id=" + ids[0],
		"confirm": fmt.Sprintf("/dashboard/leases/release?repo=acme/monorepo&fence=%d", fence), "absent": "/dashboard/absent",
	} {
		page.expect("404")
		page.size(1240, 780)
		page.scheme("light")
		page.open(path)
		if page.text(`document.getElementById("live") !== null`) == "true" {
			page.live()
		}
		if name == "repo" {
			page.click("#sync")
			page.await(`document.querySelector(".note")?.innerText.startsWith("A sync of acme/widgets is requested")`)
			page.live()
		}
		if name == "overview" {
			page.await(`document.getElementById("h-card").innerText.includes("rate limit")`)
		}
		light := page.text(`getComputedStyle(document.body).backgroundColor`)
		page.fits()
		page.accessible(`{}`)
		page.screenshot(name + "-light")
		page.scheme("dark")
		page.await(fmt.Sprintf(`getComputedStyle(document.body).backgroundColor !== %q`, light))
		page.accessible(`{runOnly: ["color-contrast"]}`)
		page.screenshot(name + "-dark")
		page.size(375, 812)
		page.scheme("light")
		page.fits()
		page.accessible(`{runOnly: ["target-size", "meta-viewport", "scrollable-region-focusable"]}`)
		page.screenshot(name + "-phone")
	}
	// The theme switch overrides the system, and is remembered.
	page.open("/")
	page.click("#theme")
	page.await(`document.documentElement.dataset.theme === "dark"`)
	page.open("/dashboard/repos")
	if theme := page.text(`document.documentElement.dataset.theme`); theme != "dark" {
		t.Errorf("on the next page the theme is %s, want dark", theme)
	}
}

func redisAway(t *testing.T, b *board, open func(*testing.T) *tab) {
	page := open(t)
	page.open("/")
	page.live()
	page.expect("503", "ERR_", "[object Event]") // logged by the browser and htmx when a request fails or a stream breaks
	b.redis.Stop()
	page.await(`document.getElementById("alert").innerText.startsWith("Redis does not answer.")`)
	value[int](page, `reload(), 0`) // as when a tab becomes visible
	page.live()
	page.await(`document.getElementById("alert").innerText.startsWith("Redis does not answer.")`)
	b.redis.Restart()
	page.await(`document.getElementById("alert").innerText === ""`)
	b.push("acme/afterwards")
	page.await(`document.getElementById("results").innerText.includes("acme/afterwards")`)
	if code := b.serve.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d with an open stream of events, want 0", code)
	}
	if strings.Contains(b.serve.Log.String(), "requests in flight were aborted") {
		t.Error("the stream of events delayed the shutdown")
	}
	page.await(`document.getElementById("live").dataset.state === "lost"`)
}
