package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
)

// Config configures a [Feed]. Redis, Reader, Audiences and Removed are required.
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

	Max       int           // streams; default 5,000, or three quarters of the limit of open files if that is less
	MaxApp    int           // streams of an app; default half of Max
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
	work   sync.WaitGroup // tail, ticker and clients
	reads  chan struct{}  // limits batches for clients that are behind

	mu       sync.Mutex
	closed   bool
	reserved int
	byApp    map[string]int // streams, reserved or attached
	clients  map[*client]struct{}
	groups   map[string]map[*client]struct{} // clients by app, "" for the operator
	behind   map[string]chan struct{}        // like reads, by app
	running  bool                            // the tails and the ticker
	sources  []*source                       // while running, by cell
}

// Limits of streams, as errors of [Feed.Reserve].
var (
	ErrBusy    = errors.New("this process has as many streams of results as it allows; try again, or ask another process")
	ErrBusyApp = errors.New("this app has as many streams of results at this process as one app may have; " +
		"close some, or ask another process")
	ErrClosed = errors.New("this process is stopping; ask another process")
)

const (
	defaultMax  = 5000 // each takes some 40 KB
	maxReads    = 256  // batches read from Redis that are being sent
	maxReadsApp = 64
	readTimeout = 10 * time.Second
)

// New returns a Feed. The caller closes it.
func New(cfg Config) (*Feed, error) {
	if cfg.Max == 0 {
		cfg.Max = min(defaultMax, openFiles()/4*3)
	}
	cfg.MaxApp = cmp.Or(cfg.MaxApp, max(1, cfg.Max/2))
	cfg.Heartbeat, cfg.Check = cmp.Or(cfg.Heartbeat, 15*time.Second), cmp.Or(cfg.Check, 2*time.Second)
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	switch {
	case cfg.Redis == nil || cfg.Reader == nil || cfg.Sources == nil || cfg.Removed == nil:
		return nil, errors.New("feed: Config.Redis, Reader, Sources and Removed are required")
	case min(cfg.Max, cfg.MaxApp) < 0 || min(cfg.Heartbeat, cfg.Check, cfg.Stall) < 0:
		return nil, errors.New("feed: a limit is negative")
	}
	f := &Feed{
		cfg:   cfg,
		reads: make(chan struct{}, maxReads), byApp: map[string]int{}, clients: map[*client]struct{}{},
		groups: map[string]map[*client]struct{}{},
		behind: map[string]chan struct{}{},
	}
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

// Reserve counts a stream of an app, "" for the operator, until release is called. It returns [ErrBusy],
// [ErrBusyApp] or [ErrClosed].
func (f *Feed) Reserve(app string) (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, ErrClosed
	case f.reserved >= f.cfg.Max:
		return nil, ErrBusy
	case f.byApp[app] >= f.cfg.MaxApp:
		return nil, ErrBusyApp
	}
	f.reserved++
	f.byApp[app]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reserved--
		if f.byApp[app]--; f.byApp[app] == 0 {
			delete(f.byApp, app)
		}
	}), nil
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

// add adds a client, unless the feed is closed.
func (f *Feed) add(c *client) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.work.Add(1)
	f.clients[c] = struct{}{}
	if f.groups[c.app] == nil {
		f.groups[c.app] = map[*client]struct{}{}
	}
	f.groups[c.app][c] = struct{}{}
	if !f.running {
		f.running = true
		f.work.Go(f.run)
	}
	return true
}

// remove removes a client.
func (f *Feed) remove(c *client) {
	defer f.work.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.clients, c)
	if group := f.groups[c.app]; group != nil {
		if delete(group, c); len(group) == 0 {
			delete(f.groups, c.app)
		}
	}
}

// all returns all clients.
func (f *Feed) all() []*client {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*client, 0, len(f.clients))
	for c := range f.clients {
		list = append(list, c)
	}
	return list
}

// run tails the sources and checks tokens until there is no client.
func (f *Feed) run() {
	ctx, cancel := context.WithCancel(f.ctx)
	var tails sync.WaitGroup
	defer tails.Wait()
	defer cancel()
	ticker := time.NewTicker(f.period())
	defer ticker.Stop()
	for checked := time.Now(); f.isNeeded(); {
		for _, added := range f.follow() {
			added.ctx, added.cancel = context.WithCancel(ctx)
			tails.Go(added.run)
		}
		select {
		case <-ticker.C:
		case <-f.ctx.Done():
			continue
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
	if f.running = !f.closed && len(f.clients) > 0; !f.running {
		f.sources = nil
	}
	return f.running
}

// follow brings the sources up to date, and returns those that were added.
func (f *Feed) follow() (added []*source) {
	wanted := f.cfg.Sources()
	f.mu.Lock()
	defer f.mu.Unlock()
	var sources []*source
	for _, one := range wanted {
		i := slices.IndexFunc(f.sources, func(s *source) bool { return s.is(one) })
		if i >= 0 {
			sources = append(sources, f.sources[i])
			continue
		}
		s := f.source(one)
		sources, added = append(sources, s), append(added, s)
	}
	for _, s := range f.sources {
		if !slices.Contains(sources, s) {
			s.cancel()
		}
	}
	f.sources = sources
	return added
}

// tailed returns the sources that are tailed.
func (f *Feed) tailed() []*source {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sources
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
	hashes := make([]string, 0, len(byToken))
	for hash := range byToken {
		hashes = append(hashes, hash)
	}
	ctx, cancel := context.WithTimeout(f.ctx, readTimeout)
	defer cancel()
	removed, err := f.cfg.Removed(ctx, hashes)
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

// openFiles returns how many files this process may open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}
