package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
)

func TestWorkersAndGroupsAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(cfg *Config) {
		cfg.Activities = func(context.Context) ([]state.Activity, error) { return someBusy, nil }
	})
	changes := events.DefaultNamespace.Changes()
	for _, group := range []string{"other-group", "workers"} {
		testenv.Must(d.client.XGroupCreateMkStream(t.Context(), changes, group, "0").Result())(t)
	}
	d.client.XAdd(t.Context(), &redis.XAddArgs{Stream: changes, Values: []string{"a", "b"}})
	for _, name := range []string{"w9", "w0-" + evil} {
		testenv.Must(d.client.XGroupCreateConsumer(t.Context(), changes, "workers", name).Result())(t)
	}
	testenv.Must(d.client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "workers", Consumer: "w1", Streams: []string{changes, ">"}}).Result())(t)
	page := d.page("/dashboard/workers", nil)
	if found := findHarm(t, page); len(found) > 0 {
		t.Errorf("the page contains %q", found)
	}
	w0, w1, w9 := strings.Index(page, `<tr id="w-w0-`), strings.Index(page, `<tr id="w-w1"`), strings.Index(page, `<tr id="w-w9"`)
	if w0 < 0 || w1 < w0 || w9 < w1 {
		t.Errorf("rows at %d, %d, %d, want them by name", w0, w1, w9)
	}
	for _, want := range []string{`/dashboard/repo?repo=acme%2Fwidgets`, "other-group", `<td data-l="Pending" class="n">1</td>`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	overview := d.page("/", nil)
	for _, want := range []string{"acme/widgets", "fetch", "3.0\u00a0MiB of 6.0\u00a0MiB", `value="50"`, "w1"} {
		if !strings.Contains(overview, want) {
			t.Errorf("no %q in what is in progress", want)
		}
	}
}

func TestWorkerThatIsNotMissingStays(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	changes := events.DefaultNamespace.Changes()
	testenv.Must(d.client.XGroupCreateMkStream(t.Context(), changes, "workers", "0").Result())(t)
	testenv.Must(d.client.XGroupCreateConsumer(t.Context(), changes, "workers", "w1").Result())(t)
	cookie, csrf := d.logIn()
	for name, status := range map[string]int{"w1": http.StatusConflict, "w2": http.StatusNotFound} {
		if resp, text := d.visit("POST", "/dashboard/workers/remove", url.Values{"csrf": {csrf}, "name": {name}}, cookie); resp.StatusCode != status {
			t.Errorf("%s: %d, want %d: %s", name, resp.StatusCode, status, text)
		}
	}
	if resp, _ := d.visit("POST", "/dashboard/workers/remove", url.Values{"csrf": {csrf}, "name": {"w1"}}, nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a login: %d", resp.StatusCode)
	}
}

func TestNoWorkerIsShownBeforeThereIsAGroup(t *testing.T) {
	t.Parallel()
	if page := startDesk(t, nil).page("/dashboard/workers", nil); !strings.Contains(page, "No worker takes changes") {
		t.Error("want no workers before the group exists")
	}
}

// TestHostsAreShown lists all hosts on their page, and on the overview those that are limited. Only admins see the credentials.
func TestHostsAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.ask("idle.example", "acme/1", "", http.StatusOK)
	if page := d.page("/", nil); strings.Contains(page, "Requests to hosts") {
		t.Errorf("hosts are shown although none is limited: %s", page)
	}
	d.ask("git.example", "acme/1", "robot", http.StatusTooManyRequests)
	for n := range 3 {
		d.ask("git.example", fmt.Sprintf("acme/%d", n), "robot", 0)
	}
	for name, query := range map[string]http.Header{"anonymous": nil, "admin": bearer} {
		text := d.follow("page=overview", query).await("hosts", "git.example").content
		for _, want := range []string{`<span class="badge warn">rate limit</span>`, `data-how="in"`, `class="n">3</td>`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
		if strings.Contains(text, "idle.example") || strings.Contains(text, "robot") != (query != nil) {
			t.Errorf("%s: %s", name, text)
		}
		page := d.page("/dashboard/hosts", query)
		limited, idle := strings.Index(page, "git.example"), strings.Index(page, "idle.example")
		if limited < 0 || idle < limited || !strings.Contains(page, "rate limit") || strings.Contains(page, "robot") != (query != nil) {
			t.Errorf("%s: want the limited host first: %s", name, page)
		}
	}
}

// wait stores notifications as package notify keeps them: one of acme/widgets failed four times, one of another repository is
// being posted.
func (d *desk) wait(app string) {
	d.t.Helper()
	ctx, prefix, box := d.t.Context(), events.DefaultNamespace.Notifications()+":", app+" acme/widgets"
	later, now := time.Now().Add(time.Hour).UnixMilli(), time.Now().UnixMilli()
	_, err := d.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, prefix+"counts", app, 3)
		pipe.HSet(ctx, prefix+"sizes", app, 2048)
		pipe.ZAdd(ctx, prefix+"apps", redis.Z{Score: float64(later), Member: app})
		pipe.ZAdd(ctx, prefix+"heads:"+app, redis.Z{Score: 1, Member: "acme/widgets"}, redis.Z{Score: 2, Member: evil})
		pipe.ZAdd(ctx, prefix+"due:"+app, redis.Z{Score: float64(later), Member: "acme/widgets"})
		pipe.RPush(ctx, prefix+"box:"+box, `1 {"_watermill_message_uuid":"msg_1"}`, "3 {}")
		pipe.RPush(ctx, prefix+"box:"+app+" "+evil, "2 {}")
		pipe.HSet(ctx, prefix+"tries", box, 4)
		pipe.HSet(ctx, prefix+"claims", app+" "+evil, "claim")
		pipe.HSet(ctx, prefix+"errors:"+app, "acme/widgets", fmt.Sprintf("%d http://docs.internal/ answered 503 %s", now, evil))
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// Why an app has not received a push is on the page of the repository and in the outbox; the error, which names the app's URL, is for
// admins only.
func TestRefusedNotificationsAreExplained(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.wait("docs")
	d.watchOf("docs", "acme/widgets")
	d.watchOf("search", "acme/gadgets")
	for _, path := range []string{"/dashboard/repo?repo=acme/widgets", "/dashboard/outbox?app=docs"} {
		page := d.page(path, bearer)
		if !strings.Contains(page, `href="/dashboard/result?id=msg_1"`) {
			t.Errorf("%s: no webhook-id that leads to the result", path)
		}
		if found := findHarm(t, page); len(found) > 0 || !strings.Contains(page, "docs.internal/ answered 503") || !strings.Contains(page, ">failing</span>") {
			t.Errorf("%s: harm %q, or no error", path, found)
		}
		if page := d.page(path, nil); strings.Contains(page, "docs.internal") || !strings.Contains(page, ">failing</span>") {
			t.Errorf("%s: visitors see the URL of an app, or not that it fails", path)
		}
	}
	if err := d.client.HSet(t.Context(), events.DefaultNamespace.Repo(mustRepo(t, "acme/widgets")), "repo", "acme/widgets", "head:refs/heads/main", strings.Repeat("1", 40),
		"given:refs/heads/main:docs", strings.Repeat("1", 40)).Err(); err != nil {
		t.Fatal(err)
	}
	if page := d.page("/dashboard/repo?repo=acme/widgets", nil); !strings.Contains(page, ">up to date</span>") || !strings.Contains(page, ">not notified</a>") {
		t.Error("the app is up to date without a hint that it was not notified")
	}
	if page := d.page("/", nil); len(findHarm(t, page)) > 0 || !strings.Contains(page, "Failing notifications") || !strings.Contains(page, `href="/dashboard/outbox?app=docs"`) {
		t.Error("the overview does not lead to the app that fails")
	}
	if page := startDesk(t, nil).page("/", nil); strings.Contains(page, "Failing notifications") {
		t.Error("the overview reports failing notifications, and there are none")
	}
	if page := d.page("/dashboard/repo?repo=acme/gadgets", bearer); strings.Contains(page, "Waiting notifications") {
		t.Error("a repository of which nothing waits has a list of notifications")
	}
}

func TestOutboxIsShownAndSent(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.wait("docs")
	due := func() time.Duration {
		score, err := d.client.ZScore(t.Context(), events.DefaultNamespace.Notifications()+":due:docs", "acme/widgets").Result()
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(time.UnixMilli(int64(score)))
	}
	cookie, csrf := d.logIn()
	for path, want := range map[string]string{"/dashboard/outbox": "<strong>3</strong> waiting", "/dashboard/outbox?app=docs": `<tr id="b-acme/widgets"`} {
		page := d.page(path, cookie)
		if found := findHarm(t, page); len(found) > 0 || !strings.Contains(page, want) {
			t.Errorf("%s: harm %q, or no %q", path, found, want)
		}
	}
	if page := d.page("/dashboard/outbox", nil); strings.Contains(page, "Send now") {
		t.Error("visitors can send notifications")
	}
	if resp, _ := d.visit("POST", "/dashboard/outbox/send", url.Values{"app": {"docs"}}, cookie); resp.StatusCode != http.StatusForbidden || due() < time.Minute {
		t.Errorf("without CSRF: %d, want 403", resp.StatusCode)
	}
	form := url.Values{"app": {"docs"}, "csrf": {csrf}}
	if resp, _ := d.visit("POST", "/dashboard/outbox/send", form, cookie); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/dashboard/outbox?app=docs" || due() > 0 {
		t.Errorf("%d, due in %v", resp.StatusCode, due())
	}
	d.redis.Stop()
	if resp, _ := d.visit("POST", "/dashboard/outbox/send", form, cookie); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("failed: %d, want 503", resp.StatusCode)
	}
}

func TestFullVolumeNeedsAPerson(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(cfg *Config) { cfg.Full = func() bool { return true } })
	if page := d.page("/", nil); !strings.Contains(page, `<a href="/dashboard/repos?sort=size">the volume is nearly full</a>`) {
		t.Errorf("the verdict does not say so: %s", page)
	}
}
