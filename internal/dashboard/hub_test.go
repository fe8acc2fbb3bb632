package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestWhatChangesIsSentAndNothingElse(t *testing.T) {
	d := startDesk(t, nil)
	d.settle(synced(t, "acme/first"), 10*time.Millisecond)
	f := d.follow("page=overview", nil)
	f.await("status", "")
	f.await("results", "acme/first")
	d.settle(synced(t, "acme/second"), 10*time.Millisecond)
	f.await("results", "acme/second")
	// Nothing comes any more: what is sent until a sign that was asked for is the sign alone.
	g := d.follow("page=leases", nil)
	g.await("leases", "No lease is held")
	d.lease("acme/widgets", "w1", "job-37")
	g.await("leases", "acme/widgets")
	var c counting
	d.client.AddHook(&c)
	eventually(t, func() bool { return c.n.Load() > 20 }, "several reads more")
	select {
	case p := <-g.events:
		t.Errorf("a part came twice: %+v", p)
	default:
	}
}

func TestAStreamEndsWithTheDashboard(t *testing.T) {
	d := startDesk(t, nil)
	f := d.follow("page=overview", nil)
	f.await("results", "")
	d.stop()
	f.ended()
	d.board.Wait()
	if resp, _ := d.visit("GET", "/dashboard/events?page=overview", nil, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d, want a stream that ends at once", resp.StatusCode)
	}
}

func TestNoMoreBrowsersFollowThanMay(t *testing.T) {
	d := startDesk(t, nil)
	d.board.hub.mu.Lock()
	d.board.hub.clients = maxClients - keptClients
	d.board.hub.mu.Unlock()
	if resp, text := d.visit("GET", "/dashboard/events?page=leases", nil, nil); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a stranger in the places of those who are logged in: %d %s, want 503", resp.StatusCode, text)
	}
	d.board.hub.mu.Lock()
	d.board.hub.clients = maxClients - 1
	d.board.hub.mu.Unlock()
	f := d.follow("page=leases", bearer)
	f.await("leases", "")
	if resp, text := d.visit("GET", "/dashboard/events?page=leases", nil, bearer); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s, want 503", resp.StatusCode, text)
	}
	f.cancel()
	f.ended()
	eventually(t, func() bool {
		d.board.hub.mu.Lock()
		defer d.board.hub.mu.Unlock()
		return d.board.hub.clients == maxClients-1
	}, "a place is free again")
}

func TestWhatIsNoPageHasNoStream(t *testing.T) {
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

// still is a hub whose one page says what it is told to.
func still(t *testing.T, says func() any) (*hub, *page) {
	t.Helper()
	d := startDesk(t, nil)
	p := &page{name: "minutes", parts: []string{"busy"}, every: time.Millisecond, template: d.board.pages["overview"].template}
	p.load = func(context.Context, url.Values, bool) (any, error) { return says(), nil }
	ctx, cancel := context.WithCancel(context.Background())
	h := newHub(ctx, slog.New(slog.DiscardHandler), newTail(d.client, "results"))
	t.Cleanup(func() { cancel(); h.wait() })
	return h, p
}

func TestWhoCannotFollowIsDropped(t *testing.T) {
	var n atomic.Int64
	h, p := still(t, func() any { return overview{More: int(n.Add(1)), Busy: someBusy} })
	slow, leave, err := h.follow(p, url.Values{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	quick, leaveToo, err := h.follow(p, url.Values{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer leaveToo()
	limit := time.After(30 * time.Second)
	for {
		select {
		case <-quick.parts:
		case <-slow.gone:
			if len(slow.parts) != maxQueued {
				t.Errorf("dropped with %d parts queued, want %d", len(slow.parts), maxQueued)
			}
			select {
			case <-quick.gone:
				t.Error("the quick one is dropped, too")
			default:
			}
			return
		case <-limit:
			t.Fatal("it is never dropped")
		}
	}
}

func TestAllWhoSeeTheSameShareOneView(t *testing.T) {
	var reads atomic.Int64
	h, p := still(t, func() any { reads.Add(1); return overview{} })
	p.every = time.Hour
	var leaves []func()
	for range 10 {
		_, leave, err := h.follow(p, url.Values{}, false)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	_, leave, err := h.follow(p, url.Values{}, true)
	if err != nil {
		t.Fatal(err)
	}
	leaves = append(leaves, leave)
	eventually(t, func() bool { return reads.Load() == 2 }, "both views are read")
	h.mu.Lock()
	views := len(h.views)
	h.mu.Unlock()
	if views != 2 {
		t.Errorf("%d views, want one for who is logged in, and one for the others", views)
	}
	for _, leave := range leaves {
		leave()
	}
	if reads.Load() != 2 {
		t.Errorf("read %d times, want twice", reads.Load())
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

func TestNobodyLooksNothingIsRead(t *testing.T) {
	d := startDesk(t, nil)
	var c counting
	d.client.AddHook(&c)
	f := d.follow("page=overview", nil)
	f.await("results", "")
	if c.n.Load() == 0 {
		t.Fatal("nothing was read while somebody looked")
	}
	f.cancel()
	f.ended()
	eventually(t, func() bool { d.board.hub.mu.Lock(); defer d.board.hub.mu.Unlock(); return len(d.board.hub.views) == 0 }, "the view ends")
	d.board.tail.mu.Lock()
	d.board.tail.wanted = time.Now().Add(-2 * linger)
	d.board.tail.mu.Unlock()
	eventually(t, func() bool { d.board.tail.mu.Lock(); defer d.board.tail.mu.Unlock(); return !d.board.tail.running }, "the tail ends")
	idle := make(chan struct{})
	go func() { d.board.hub.runs.Wait(); close(idle) }()
	select {
	case <-idle: // nothing runs that could read
	case <-time.After(30 * time.Second):
		t.Error("something runs on while nobody looks")
	}
}

func TestWhatNobodyWaitsForIsNotReadOn(t *testing.T) {
	h, p := still(t, func() any { return overview{} })
	began, ended := make(chan struct{}), make(chan error, 1)
	p.load = func(ctx context.Context, _ url.Values, _ bool) (any, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	_, leave, err := h.follow(p, url.Values{}, false)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	leave()
	h.mu.Lock()
	views := len(h.views)
	h.mu.Unlock()
	if views != 0 {
		t.Errorf("%d views that nobody looks at", views)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) { // but when its time was over
		t.Errorf("it is read for nobody: %v", err)
	}
}

func TestWhoHasToWaitForALongListIsToldSo(t *testing.T) {
	d := startDesk(t, nil)
	for range maxDear {
		d.board.hub.dear[false] <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := d.board.hub.load(ctx, d.board.pages["repos"], url.Values{}, false)
	if text := string(downFor(err, false)); !strings.Contains(text, "too many lists") {
		t.Errorf("%v is told as %q", err, text)
	}
	d.page("/dashboard/repos", bearer) // who is logged in waits for no stranger
}

func TestADearReadIsRare(t *testing.T) {
	if p := pace(beat, time.Second); p != 19*time.Second {
		t.Errorf("after a read of 1 s the next is in %v, want 19 s", p)
	}
	if p := pace(beat, time.Millisecond); p != beat-time.Millisecond {
		t.Errorf("after a read of 1 ms the next is in %v", p)
	}
}

func TestRedisAwayIsSaidAndOverByItself(t *testing.T) {
	d := startDesk(t, nil)
	d.settle(synced(t, "acme/first"), time.Millisecond)
	f := d.follow("page=overview", nil)
	f.await("results", "acme/first")
	d.redis.Stop()
	f.await("status", "Redis does not answer")
	resp, text := d.visit("GET", "/dashboard/leases", nil, nil)
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "Redis does not answer") || !strings.Contains(text, "sse-connect") {
		t.Errorf("a page meanwhile: %d, want 503, with the reason and a stream", resp.StatusCode)
	}
	d.redis.Restart()
	f.await("status", "")
	d.settle(synced(t, "acme/second"), time.Millisecond)
	f.await("results", "acme/second")
}

func TestLinesOfAPartStayInIt(t *testing.T) {
	got := event(part{"results", "a\r\nevent: status\rdata: x\n\nid: 1"})
	want := "event: results\ndata: a\ndata: event: status\ndata: data: x\ndata: \ndata: id: 1\n\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAPageRecoversSoonAfterARedisThatDidNotAnswer(t *testing.T) {
	p := &page{name: "minutes", parts: []string{"busy"}, every: beat, template: startDesk(t, nil).board.pages["overview"].template}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHub(ctx, slog.New(slog.DiscardHandler), newTail(nil, ""))
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
		c, leave, err := h.follow(p, url.Values{}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		if said := <-c.parts; said.name != "status" || said.content == "" {
			t.Fatalf("%+v, want to be told that Redis does not answer", said)
		}
		back.Store(true)
		since := time.Now()
		for said := range c.parts {
			if said.name == "busy" {
				break
			}
		}
		if took := time.Since(since); took > 2*readTimeout {
			t.Errorf("it says so for %v after Redis is back", took)
		}
	})
}
