package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cache"
	"lockstep/internal/feed"
	"lockstep/internal/operate"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
)

// Config configures a Dashboard. Fields are required unless marked optional.
type Config struct {
	Redis   redis.UniversalClient // follows Results; never closed
	Results string                // the stream of results
	Changes string                // the stream of changes
	Group   string                // the workers' consumer group
	Leases  *operate.Leases       // listed often, so they are to be shared
	// whose data the pages show that are not of all cells; "" without cells
	Cell       string
	Letters    *operate.Letters
	Streams    *telemetry.Streams
	Repos      *operate.Repos
	Watches    *operate.Watches
	Activities func(context.Context) ([]state.Activity, error) // operations in progress on all workers
	Hosts      *telemetry.Hosts                                // limits of requests to hosts
	Outcomes   *operate.Results                                // single ones
	Workers    *operate.Workers                                // of all cells
	Outboxes   *operate.Outboxes
	Followers  func(context.Context) ([]feed.Follower, error) // shown to admins; optional
	// of the directory, called often; nil without cells
	Cells func(context.Context) []operate.Cell
	// bytes on the local volume, false if unknown; optional
	Size func(events.RepoPath) (int64, bool)
	Full func() bool // the local volume is nearly full; optional
	// adds a change to Changes; nil disables Sync now
	Publish   func(context.Context, events.Change) (entry string, err error)
	PollEvery time.Duration // poll interval of watches that do not set one
	Guard     server.Guard  // authenticates admins by token or loopback address
	Proxy     Proxy         // authenticates admins by a proxy's header; optional
	Realm     string        // separates this deployment's sessions from those of others
	Version   string        // shown in the footer
	Log       *slog.Logger
}

// Proxy is an authenticating reverse proxy in front of the dashboard. The zero Proxy disables it.
type Proxy struct {
	Header string         // request header that carries the user's name
	Users  []string       // users who may make changes; empty allows every user
	From   []netip.Prefix // addresses whose header is trusted
}

// Dashboard serves the pages. It is safe for concurrent use.
type Dashboard struct {
	cfg    Config
	mux    *http.ServeMux
	assets assets
	pages  map[string]*page // by name
	hub    *hub
	tail   *tail
	access access

	index     *repoIndex
	followers cache.Cache[[]feed.Follower]
	histories *histories
}

// New returns a Dashboard that runs until ctx is done; [Dashboard.Wait] waits for its background work to end.
func New(ctx context.Context, cfg Config) (*Dashboard, error) {
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{cfg: cfg, assets: assets, access: newAccess(cfg), tail: newTail(cfg.Redis, cfg.Results),
		followers: cache.Cache[[]feed.Follower]{TTL: followersKept, Timeout: followersWait},
		histories: newHistories(cfg.Redis)}
	d.hub = newHub(ctx, cfg.Log)
	d.index = &repoIndex{page: cfg.Repos.Page, start: d.hub.run, limit: maxIndexed}
	if d.pages, err = d.parsePages(); err != nil {
		return nil, err
	}
	d.mux = d.routes()
	return d, nil
}

// Wait waits for the dashboard's background work to end. The context passed to New must be done.
func (d *Dashboard) Wait() { d.hub.wait() }

func (d *Dashboard) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for name, p := range d.pages {
		if p.path != "" {
			mux.Handle("GET "+p.path, d.show(name))
		}
	}
	mux.HandleFunc("GET /dashboard/{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
	})
	mux.HandleFunc("GET /dashboard/events", d.stream)
	mux.HandleFunc("GET /dashboard/static/{hash}/{name...}", d.assets.serve)
	mux.HandleFunc("GET /dashboard/login", d.showLogin)
	mux.HandleFunc("POST /dashboard/login", d.login)
	mux.Handle("POST /dashboard/logout", d.action(d.logout))
	mux.Handle("GET /dashboard/leases/release", d.forAdmins(d.confirmRelease))
	mux.Handle("POST /dashboard/leases/release", d.action(d.release))
	mux.Handle("POST /dashboard/repo/sync", d.action(d.syncNow))
	mux.Handle("POST /dashboard/outbox/send", d.action(d.sendNow))
	mux.Handle("POST /dashboard/workers/remove", d.action(d.removeWorker))
	mux.Handle("GET /dashboard/result", d.forAdmins(d.showResult))
	mux.Handle("GET /dashboard/dead/letter", d.forAdmins(d.showLetter))
	mux.Handle("POST /dashboard/dead/retry", d.action(d.retry))
	mux.Handle("GET /dashboard/dead/retry-all", d.forAdmins(d.confirmRetryAll))
	mux.Handle("POST /dashboard/dead/retry-all", d.action(d.retryAll))
	mux.Handle("GET /dashboard/dead/drop", d.forAdmins(d.confirmDrop))
	mux.Handle("POST /dashboard/dead/drop", d.action(d.drop))
	mux.HandleFunc("/", d.notFound)
	return mux
}

// policy is the content security policy: it allows embedded files only, and forbids framing.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements [http.Handler].
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // no-referrer makes a form's origin null, which is refused without TLS
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
	d.mux.ServeHTTP(w, r)
}
