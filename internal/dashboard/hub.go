package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"
)

const (
	refreshEvery    = 500 * time.Millisecond // for data that changes often
	readTimeout     = 5 * time.Second
	maxClients      = 64
	reservedClients = 16 // of maxClients, reserved for admins
	maxExpensive    = 2  // expensive pages loaded concurrently, separately for anonymous visitors and admins
)

var errFull = errors.New("too many browsers follow the dashboard; close some, or connect to another process")

var errBusy = errors.New("too many lists are being loaded; retrying")

// hub loads and renders pages and sends them to subscribed clients.
type hub struct {
	ctx        context.Context // done when the dashboard stops
	log        *slog.Logger
	expensive  map[bool]chan struct{} // semaphores for expensive pages, by admin
	retryEvery time.Duration          // maximum pause after a failed load
	background sync.WaitGroup

	mu      sync.Mutex
	views   map[string]*view // with at least one client
	clients int
}

// view is a page with a query, rendered for one kind of visitor. hub.mu guards its clients and parts.
type view struct {
	page    *page
	query   url.Values
	admin   bool
	end     context.CancelFunc // called when the last client has left
	clients map[*client]struct{}
	parts   map[string]string // present content, by name
}

// client is a browser that follows a view. hub.mu guards what it was sent.
type client struct {
	view  *view
	woken chan struct{}     // there may be other parts; has room for one
	sent  map[string]string // content, by name
}

type part struct{ name, content string }

func newHub(ctx context.Context, log *slog.Logger) *hub {
	h := &hub{ctx: ctx, log: log, retryEvery: readTimeout, views: map[string]*view{}}
	h.expensive = map[bool]chan struct{}{false: make(chan struct{}, maxExpensive), true: make(chan struct{}, maxExpensive)}
	return h
}

// run starts fn in the background unless the hub has stopped. hub.wait waits for it.
func (h *hub) run(fn func(ctx context.Context)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.background.Go(func() { fn(h.ctx) })
	}
}

func (h *hub) wait() {
	<-h.ctx.Done()
	h.mu.Lock() // after this, run and subscribe start nothing more
	clear(h.views)
	h.mu.Unlock()
	h.background.Wait()
}

// load loads a page's data. Expensive pages wait for a semaphore; errBusy means that the wait was too long.
func (h *hub) load(ctx context.Context, p *page, query url.Values, admin bool) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if p.expensive {
		turn := h.expensive[admin]
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, fmt.Errorf("load %s: %w", p.name, errBusy)
		}
	}
	return p.load(ctx, query, admin)
}

// subscribe returns a client of a page, which is woken when parts change, until unsubscribe is called. It returns
// errFull when there are too many clients.
func (h *hub) subscribe(p *page, query url.Values, admin bool) (c *client, unsubscribe func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := maxClients
	if !admin {
		limit -= reservedClients
	}
	if h.clients >= limit {
		return nil, nil, errFull
	}
	h.clients++
	key := fmt.Sprint(p.name, " ", admin, " ", query.Encode())
	v := h.views[key]
	if v == nil {
		ctx, end := context.WithCancel(h.ctx)
		v = &view{page: p, query: query, admin: admin, end: end, clients: map[*client]struct{}{}, parts: map[string]string{}}
		h.views[key] = v
		if h.ctx.Err() == nil {
			h.background.Go(func() { h.refresh(ctx, v) })
		}
	}
	c = &client{view: v, woken: make(chan struct{}, 1), sent: map[string]string{}}
	c.woken <- struct{}{}
	v.clients[c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.clients--
		delete(v.clients, c)
		if len(v.clients) == 0 && h.views[key] == v {
			delete(h.views, key)
			v.end()
		}
	}, nil
}

// refresh repeatedly loads, renders and sends a view until ctx is done.
func (h *hub) refresh(ctx context.Context, v *view) {
	for {
		start := time.Now()
		data, err := h.load(ctx, v.page, v.query, v.admin)
		spent := time.Since(start)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.log.DebugContext(ctx, "dashboard page not loaded", "page", v.page.name, "error", err)
		}
		h.publish(v, v.render(data, err))
		pause := pauseAfter(spent, v.page.every)
		if err != nil { // the load may have used up its timeout, and clients wait for the recovery
			pause = min(pause, h.retryEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// pauseAfter returns how long to pause after a load, so that loading takes at most a twentieth of the time.
func pauseAfter(spent, every time.Duration) time.Duration { return max(every-spent, 19*spent) }

// render renders the view's parts; after a failed load only the status, so that clients keep the other parts.
func (v *view) render(data any, err error) []part {
	parts := []part{{"status", ""}}
	if err != nil {
		parts[0].content = string(alertFor(err, v.admin))
		return parts
	}
	for _, name := range v.page.parts {
		var b bytes.Buffer
		if err := v.page.template.ExecuteTemplate(&b, name,
			partData{Admin: v.admin, Query: flat(v.query), Data: data}); err != nil {
			continue // cannot fail: tests render every part
		}
		parts = append(parts, part{name, b.String()})
	}
	return parts
}

// publish replaces the parts of a view, and wakes its clients if one has changed.
func (h *hub) publish(v *view, parts []part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for _, p := range parts {
		last, known := v.parts[p.name]
		changed = changed || !known || last != p.content
		v.parts[p.name] = p.content
	}
	if !changed {
		return
	}
	for c := range v.clients {
		select {
		case c.woken <- struct{}{}:
		default: // it is yet to look at the former change
		}
	}
}

// next returns the parts that differ from what a client was sent, in their order, and counts them as sent.
func (h *hub) next(c *client) (parts []part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range append([]string{"status"}, c.view.page.parts...) {
		content, known := c.view.parts[name]
		if last, sent := c.sent[name]; known && (!sent || last != content) {
			parts = append(parts, part{name, content})
			c.sent[name] = content
		}
	}
	return parts
}
