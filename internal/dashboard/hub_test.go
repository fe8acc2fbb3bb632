package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestOnlyChangedPartsAreSent(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.board.pages["leases"].every = 10 * time.Millisecond
	d.settle(synced(t, "acme/first"), 10*time.Millisecond)
	f := d.follow("page=overview", nil)
	f.await("status", "")
	f.await("results", "acme/first")
	d.settle(synced(t, "acme/second"), 10*time.Millisecond)
	f.await("results", "acme/second")
	// Once a part is sent, further loads of the same data send nothing.
	g := d.follow("page=leases", nil)
	g.await("leases", "No lease is held")
	d.lease("acme/widgets", "w1", "job-37")
	g.await("leases", "acme/widgets")
	var c counting
	d.client.AddHook(&c)
	eventually(t, func() bool { return c.n.Load() > 20 }, "the page is loaded several more times")
	select {
	case p := <-g.events:
		t.Errorf("a part came twice: %+v", p)
	default:
	}
}

func TestStreamEndsWithDashboard(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	f := d.follow("page=overview", nil)
	f.await("results", "")
	d.stop()
	f.awaitEnd()
	d.board.Wait()
	if resp, _ := d.visit("GET", "/dashboard/events?page=overview", nil, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("after stopping: %d, want a stream that ends at once", resp.StatusCode)
	}
}

func TestClientLimit(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.board.hub.mu.Lock()
	d.board.hub.clients = maxClients - reservedClients
	d.board.hub.mu.Unlock()
	if resp, text := d.visit("GET", "/dashboard/events?page=leases", nil, nil); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("anonymous client in a place reserved for admins: %d %s, want 503", resp.StatusCode, text)
	}
	d.board.hub.mu.Lock()
	d.board.hub.clients = maxClients - 1
	d.board.hub.mu.Unlock()
	f := d.follow("page=leases", bearer)
	f.await("leases", "")
	if resp, text := d.visit("GET", "/dashboard/events?page=leases", nil, bearer); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("client above the limit: %d %s, want 503", resp.StatusCode, text)
	}
	f.cancel()
	f.awaitEnd()
	eventually(t, func() bool {
		d.board.hub.mu.Lock()
		defer d.board.hub.mu.Unlock()
		return d.board.hub.clients == maxClients-1
	}, "the client's place is free again")
}

func TestNoStreamForUnknownPagesAndOtherSites(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for _, query := range []string{"", "page=login", "page=letter", "page=nothing"} {
		if resp, _ := d.visit("GET", "/dashboard/events?"+query, nil, bearer); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %d, want 404", query, resp.StatusCode)
		}
	}
	if resp, _ := d.visit("GET", "/dashboard/events?page=leases", nil, http.Header{"Sec-Fetch-Site": {"cross-site"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another site's page: %d, want 403", resp.StatusCode)
	}
}

// startHub returns a hub and a page whose data comes from load.
func startHub(t *testing.T, load func() any) (*hub, *page) {
	t.Helper()
	d := startDesk(t, nil)
	p := &page{name: "minutes", parts: []string{"busy"}, every: time.Millisecond, template: d.board.pages["overview"].template}
	p.load = func(context.Context, url.Values, bool) (any, error) { return load(), nil }
	ctx, cancel := context.WithCancel(context.Background())
	h := newHub(ctx, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { cancel(); h.wait() })
	return h, p
}

// TestSlowClientGetsTheNewestParts has parts change several times before a client gets them.
func TestSlowClientGetsTheNewestParts(t *testing.T) {
	t.Parallel()
	h, p := startHub(t, nil)
	p.load = func(ctx context.Context, _ url.Values, _ bool) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c, leave, err := h.subscribe(p, url.Values{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for _, content := range []string{"1", "2", "3"} {
		h.publish(c.view, []part{{"busy", content}})
	}
	if parts := h.next(c); !slices.Equal(parts, []part{{"busy", "3"}}) {
		t.Errorf("%+v, want the newest", parts)
	}
	if parts := h.next(c); len(parts) > 0 {
		t.Errorf("sent again: %+v", parts)
	}
}

// counting counts the commands of a client.
type counting struct{ n atomic.Int64 }

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { c.n.Add(1); return next(ctx, cmd) }
}

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { c.n.Add(int64(len(cmds))); return next(ctx, cmds) }
}

func TestLoadIsCancelledWhenLastClientLeaves(t *testing.T) {
	t.Parallel()
	h, p := startHub(t, func() any { return overview{} })
	started, ended := make(chan struct{}), make(chan error, 1)
	p.load = func(ctx context.Context, _ url.Values, _ bool) (any, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	_, leave, err := h.subscribe(p, url.Values{}, false)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	leave()
	h.mu.Lock()
	views := len(h.views)
	h.mu.Unlock()
	if views != 0 {
		t.Errorf("%d views without clients", views)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the load ended with %v, want it cancelled", err)
	}
}

func TestTooManyExpensiveLoads(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	for range maxExpensive {
		d.board.hub.expensive[false] <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := d.board.hub.load(ctx, d.board.pages["repos"], url.Values{}, false)
	if text := string(alertFor(err, false)); !strings.Contains(text, "too many lists") {
		t.Errorf("%v is shown as %q", err, text)
	}
	d.page("/dashboard/repos", bearer) // admins do not wait for anonymous visitors
}

func TestRecoveryFromRedisOutage(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.board.hub.retryEvery = refreshEvery
	d.settle(synced(t, "acme/first"), time.Millisecond)
	f := d.follow("page=overview", nil)
	f.await("results", "acme/first")
	d.redis.Stop()
	f.await("status", "Redis does not answer")
	resp, text := d.visit("GET", "/dashboard/leases", nil, nil)
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "Redis does not answer") || !strings.Contains(text, "sse-connect") {
		t.Errorf("a page during the outage: %d, want 503 with the reason and an event stream", resp.StatusCode)
	}
	d.redis.Restart()
	f.await("status", "")
	d.settle(synced(t, "acme/second"), time.Millisecond)
	f.await("results", "acme/second")
}

func TestEventEscapesLineBreaks(t *testing.T) {
	got := event(part{"results", "a\r\nevent: status\rdata: x\n\nid: 1"})
	want := "event: results\ndata: a\ndata: event: status\ndata: data: x\ndata: \ndata: id: 1\n\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPageRecoversSoonAfterRedisTimeout(t *testing.T) {
	t.Parallel()
	p := &page{name: "minutes", parts: []string{"busy"}, every: refreshEvery, template: startDesk(t, nil).board.pages["overview"].template}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHub(ctx, slog.New(slog.DiscardHandler))
		defer h.wait()
		defer cancel()
		var back atomic.Bool
		p.load = func(ctx context.Context, _ url.Values, _ bool) (any, error) {
			if !back.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return overview{Busy: someBusy}, nil
		}
		c, leave, err := h.subscribe(p, url.Values{}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		await := func(name string) {
			for {
				<-c.woken
				if slices.ContainsFunc(h.next(c), func(p part) bool { return p.name == name && p.content != "" }) {
					return
				}
			}
		}
		await("status")
		back.Store(true)
		since := time.Now()
		await("busy")
		if delay := time.Since(since); delay > 2*readTimeout {
			t.Errorf("the page recovers %v after Redis does", delay)
		}
	})
}
