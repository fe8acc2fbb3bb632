package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/access"
)

// Config configures a [Feed]. Redis, Reader, Sources and Removed are required.
type Config struct {
	Redis  redis.UniversalClient // never closed; must not retry by itself
	Reader *stream.Reader        // waits for results, with one connection for each of Sources

	// Sources returns the cells whose results are sent, the first of which is this process' own, or the one
	// of a deployment without cells. It is called again and again.
	Sources func() []Source
	// Refresh makes Sources up to date. It is called if a cursor has a cell that is not among them. Optional.
	Refresh func(context.Context) error
	// Removed returns the tokens that were removed, of those with the given hashes. [access.Tokens.Removed] implements it.
	Removed func(ctx context.Context, hashes []string) ([]string, error)

	Heartbeat time.Duration // between heartbeats of a stream; default 15 s
	// between checks of tokens, and for which who may read a result is not decided again; default 2 s
	Check time.Duration
	Stall time.Duration // how long a client may take to accept a batch; default 1 min

	Log *slog.Logger // default slog.Default
}

// Feed sends results to clients. It is safe for concurrent use.
type Feed struct {
	cfg Config

	ctx    context.Context // done when Close is called
	cancel context.CancelFunc
	work   sync.WaitGroup // tails, tickers and clients

	// limit the batches for clients that are behind, of each app and of all
	reads   access.Turns
	batches chan struct{}

	mu      sync.Mutex
	closed  bool
	clients map[*client]struct{}
	sources []*source // that are tailed; nil without clients
}

// Errors of [Feed.Serve].
var (
	ErrClosed  = errors.New("this process is stopping; ask another process")
	ErrChanged = errors.New("the cells of the deployment have changed; try again")
)

const (
	maxReads    = 64  // batches read from Redis that are being sent, of each app
	maxBatches  = 256 // the same, of all apps
	readTimeout = 10 * time.Second
)

// New returns a Feed. The caller closes it.
func New(cfg Config) (*Feed, error) {
	cfg.Heartbeat, cfg.Check = cmp.Or(cfg.Heartbeat, 15*time.Second), cmp.Or(cfg.Check, 2*time.Second)
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	switch {
	case cfg.Redis == nil || cfg.Reader == nil || cfg.Sources == nil || cfg.Removed == nil:
		return nil, errors.New("feed: Config.Redis, Reader, Sources and Removed are required")
	case min(cfg.Heartbeat, cfg.Check, cfg.Stall) < 0:
		return nil, errors.New("feed: a limit is negative")
	}
	f := &Feed{cfg: cfg, reads: access.Turns{Max: maxReads}, batches: make(chan struct{}, maxBatches),
		clients: map[*client]struct{}{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f, nil
}

// Close closes all streams, and waits until nothing is sent any more.
func (f *Feed) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	for _, c := range f.all() {
		c.end()
	}
	f.work.Wait()
}

// Open returns the number of open streams.
func (f *Feed) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.clients)
}

// Client is the reader of a stream.
type Client struct {
	App   string // whose results it reads; "" for the operator, who reads all
	Token string // hash of the token, whose removal ends the stream; "" for the operator
	From  Cursor // where the stream begins
}

// add adds a client, which reads from the sources that are tailed now. It returns [ErrClosed] or [ErrChanged].
func (f *Feed) add(c *client) error {
	wanted := f.present()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	sources := f.sources
	if sources == nil {
		sources = wanted
	}
	for _, s := range sources {
		if _, ok := c.at[s.Cell]; !ok || len(c.at) != len(sources) {
			return ErrChanged
		}
		c.inboxes = append(c.inboxes, &inbox{from: s, app: c.app, wake: c.wake})
	}
	f.work.Add(1)
	f.clients[c] = struct{}{}
	if f.sources == nil {
		f.sources = sources
		f.work.Go(func() { f.run(sources) })
	}
	return nil
}

// remove removes a client.
func (f *Feed) remove(c *client) {
	defer f.work.Done()
	for _, in := range c.inboxes {
		in.leave()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.clients, c)
}

// all returns all clients.
func (f *Feed) all() []*client {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.clients))
}

// present returns the sources of the present cells.
func (f *Feed) present() (sources []*source) {
	for _, one := range f.cfg.Sources() {
		sources = append(sources, newSource(f, one))
	}
	return sources
}

// run tails sources and checks tokens until there is no client. When the cells of the deployment change, all
// streams end, and clients continue from their positions.
func (f *Feed) run(sources []*source) {
	ctx, cancel := context.WithCancel(f.ctx)
	var tails sync.WaitGroup
	defer tails.Wait()
	defer cancel()
	for _, s := range sources {
		tails.Go(func() { s.run(ctx) })
	}
	ticker := time.NewTicker(f.period())
	defer ticker.Stop()
	for checked := time.Now(); f.isNeeded(); {
		select {
		case <-ticker.C:
		case <-f.ctx.Done():
			continue
		}
		if !slices.EqualFunc(sources, f.cfg.Sources(), (*source).is) {
			f.mu.Lock()
			f.sources = nil
			f.mu.Unlock()
			for _, c := range f.all() {
				c.end()
			}
			return
		}
		if time.Since(checked) >= f.cfg.Check {
			f.check()
			checked = time.Now()
		}
	}
}

// period is how often the sources are looked at, and Redis is asked again if it does not answer.
func (f *Feed) period() time.Duration { return min(time.Second, f.cfg.Heartbeat, f.cfg.Check) }

// isNeeded reports whether there are clients. If not, the sources are forgotten.
func (f *Feed) isNeeded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || len(f.clients) == 0 {
		f.sources = nil
		return false
	}
	return true
}

// check ends the streams of tokens that were removed.
func (f *Feed) check() {
	byToken := map[string][]*client{}
	for _, c := range f.all() {
		if c.token != "" {
			byToken[c.token] = append(byToken[c.token], c)
		}
	}
	if len(byToken) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
	defer cancel()
	removed, err := f.cfg.Removed(ctx, slices.Collect(maps.Keys(byToken)))
	if err != nil {
		return // the tail logs that Redis does not answer, and nothing can be read meanwhile
	}
	for _, hash := range removed {
		for _, c := range byToken[hash] {
			c.end()
		}
		f.cfg.Log.InfoContext(ctx, "streams of results ended, their token was removed",
			"token", fmt.Sprintf("%.12s", hash), "streams", len(byToken[hash]))
	}
}
