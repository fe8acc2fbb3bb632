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
	beat        = 500 * time.Millisecond // between two looks at what changes often
	readTimeout = 5 * time.Second
	maxClients  = 64
	keptClients = 16 // of them for those who are logged in: strangers cannot take every place
	maxQueued   = 32 // parts that a client may be behind
	maxDear     = 2  // dear pages read at once for strangers, and as many for those who are logged in
)

// errFull means that as many look as may.
var errFull = errors.New("too many browsers follow the dashboard; close some, or ask another process")

// errBusy means that dear pages are read by others, and were for long.
var errBusy = errors.New("too many lists are read at once just now; it is tried again")

// hub renders pages for all who look at them.
type hub struct {
	ctx  context.Context // done when nothing is to run any more
	log  *slog.Logger
	tail *tail
	dear map[bool]chan struct{} // by whether somebody is logged in
	runs sync.WaitGroup

	mu      sync.Mutex
	views   map[string]*view // those that somebody looks at
	clients int
}

// view is a page with a query as some clients see it. Its fields are the hub's to guard.
type view struct {
	page    *page
	query   url.Values
	admin   bool
	end     context.CancelFunc // called when the last client has left
	clients map[*client]struct{}
	parts   map[string]string // as sent last
}

// client is a browser that follows a view.
type client struct {
	parts chan part     // to be sent
	gone  chan struct{} // closed when it could not follow
}

// part is a piece of a page by its name.
type part struct{ name, content string }

func newHub(ctx context.Context, log *slog.Logger, tail *tail) *hub {
	h := &hub{ctx: ctx, log: log, tail: tail, views: map[string]*view{}}
	h.dear = map[bool]chan struct{}{false: make(chan struct{}, maxDear), true: make(chan struct{}, maxDear)}
	tail.start = h.run
	return h
}

// run runs fn until the hub ends, which waits for it.
func (h *hub) run(fn func(ctx context.Context)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.runs.Go(func() { fn(h.ctx) })
	}
}

func (h *hub) wait() {
	<-h.ctx.Done()
	h.mu.Lock() // whoever has seen the hub run has started by now
	clear(h.views)
	h.mu.Unlock()
	h.runs.Wait()
}

// load reads what a page shows.
func (h *hub) load(ctx context.Context, p *page, query url.Values, admin bool) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if p.dear {
		turn := h.dear[admin]
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, fmt.Errorf("read %s: %w", p.name, errBusy)
		}
	}
	return p.load(ctx, query, admin)
}

// follow has a client told of all parts of a page, and from then on of those that change, until it leaves.
func (h *hub) follow(p *page, query url.Values, admin bool) (c *client, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	most := maxClients
	if !admin {
		most -= keptClients
	}
	if h.clients >= most {
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
			h.runs.Go(func() { h.keep(ctx, v) })
		}
	}
	c = &client{parts: make(chan part, maxQueued), gone: make(chan struct{})}
	v.clients[c] = struct{}{}
	for name, content := range v.parts {
		c.parts <- part{name, content} // fewer than there is room for
	}
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

// keep renders a view for as long as it has clients.
func (h *hub) keep(ctx context.Context, v *view) {
	for {
		began := time.Now()
		data, err := h.load(ctx, v.page, v.query, v.admin)
		spent := time.Since(began)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.log.DebugContext(ctx, "dashboard cannot read", "page", v.page.name, "error", err)
		}
		h.tell(v, v.render(data, err))
		pause := pace(v.page.every, spent)
		if err != nil { // it was waiting that took so long, and somebody waits for its end
			pause = min(pause, readTimeout)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// pace is how long to wait after a read that took spent: so long that reading takes at most a twentieth of the time.
func pace(every, spent time.Duration) time.Duration { return max(every-spent, 19*spent) }

// render renders the parts. Those of data that could not be read stay as they were.
func (v *view) render(data any, err error) []part {
	parts := []part{{"status", ""}}
	if err != nil {
		parts[0].content = string(downFor(err, v.admin))
		return parts
	}
	for _, name := range v.page.parts {
		var b bytes.Buffer
		if err := v.page.template.ExecuteTemplate(&b, name, frame{Admin: v.admin, Query: flat(v.query), Data: data}); err != nil {
			continue // it renders in the page's tests
		}
		parts = append(parts, part{name, b.String()})
	}
	return parts
}

// tell sends what has changed, and drops who cannot follow.
func (h *hub) tell(v *view, parts []part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range parts {
		if last, sent := v.parts[p.name]; sent && last == p.content {
			continue
		}
		v.parts[p.name] = p.content
		for c := range v.clients {
			select {
			case c.parts <- p:
			default:
				close(c.gone)
				delete(v.clients, c)
			}
		}
	}
}
