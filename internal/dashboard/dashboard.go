package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Config says what the dashboard shows, and to whom. What may be nil is left out.
type Config struct {
	Redis      redis.UniversalClient // to follow Results; never closed
	Results    string                // the stream of results
	Changes    string                // the stream of changes
	Group      string                // who works on them
	Locks      server.Locks          // listed often: [server.ShareLocks]
	Dead       server.Dead
	Streams    server.Streams
	Repos      Repos
	Watches    Watches
	Activities Activities                          // what is worked on; may be nil
	Size       func(events.RepoPath) (int64, bool) // bytes on the volume, where there is one here; may be nil
	PollEvery  time.Duration                       // how often a watch that leaves it open is polled
	Guard      server.Guard                        // who may change something
	Proxy      Proxy                               // who else may
	Realm      string                              // tells this deployment's sessions from those of others
	Version    string                              // to show
	Log        *slog.Logger
}

// Repos are the repositories that are shown; a [state.Store] is.
type Repos interface {
	server.Repos
	ManyHeads(ctx context.Context, repos []string) ([]map[string]string, error)
}

// Watches are the watches that are shown; a [watch.Registry] is.
type Watches interface {
	List(ctx context.Context, q watch.Query) (watch.Page, error)
}

// Activities are what all workers are at; a [state.Store] knows.
type Activities interface {
	Activities(ctx context.Context) ([]state.Activity, error)
}

// Proxy is a proxy before the dashboard that says who the user is. The zero Proxy is none.
type Proxy struct {
	Header string         // in which it names the user
	Users  []string       // who may change something; none: whoever it names
	From   []netip.Prefix // its addresses
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
}

// New makes a Dashboard that lives until ctx is done: streams to browsers end then, and so does all that it
// does in the background. [Dashboard.Wait] returns once it has.
func New(ctx context.Context, cfg Config) (*Dashboard, error) {
	switch {
	case cfg.Redis == nil || cfg.Results == "" || cfg.Changes == "" || cfg.Group == "":
		return nil, errors.New("dashboard: Config.Redis, Results, Changes and Group are required")
	case cfg.Locks == nil || cfg.Dead == nil || cfg.Streams == nil || cfg.Repos == nil || cfg.Watches == nil:
		return nil, errors.New("dashboard: Config.Locks, Dead, Streams, Repos and Watches are required")
	case (cfg.Proxy.Header == "") != (len(cfg.Proxy.From) == 0):
		return nil, errors.New("dashboard: Config.Proxy wants both, Header and From")
	case cfg.Log == nil:
		return nil, errors.New("dashboard: Config.Log is required")
	}
	access, err := newAccess(cfg)
	if err != nil {
		return nil, err
	}
	assets, err := loadAssets()
	if err != nil {
		return nil, err
	}
	d := &Dashboard{cfg: cfg, assets: assets, access: access, tail: newTail(cfg.Redis, cfg.Results)}
	d.hub = newHub(ctx, cfg.Log, d.tail)
	if d.pages, err = d.parsePages(); err != nil {
		return nil, err
	}
	d.mux = d.routes()
	return d, nil
}

// Wait returns once nothing of the dashboard runs any more. Its context must be done.
func (d *Dashboard) Wait() { d.hub.wait() }

func (d *Dashboard) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for name, p := range d.pages {
		if p.path != "" {
			mux.Handle("GET "+p.path, d.show(name))
		}
	}
	mux.HandleFunc("GET /dashboard/{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusSeeOther) })
	mux.HandleFunc("GET /dashboard/events", d.stream)
	mux.HandleFunc("GET /dashboard/static/{hash}/{name...}", d.assets.serve)
	mux.HandleFunc("GET /dashboard/login", d.showLogin)
	mux.HandleFunc("POST /dashboard/login", d.login)
	mux.Handle("POST /dashboard/logout", d.changing(d.logout))
	mux.Handle("GET /dashboard/leases/release", d.forAdmins(d.confirmRelease))
	mux.Handle("POST /dashboard/leases/release", d.changing(d.release))
	mux.Handle("GET /dashboard/dead/letter", d.forAdmins(d.showLetter))
	mux.Handle("POST /dashboard/dead/retry", d.changing(d.retry))
	mux.Handle("GET /dashboard/dead/drop", d.forAdmins(d.confirmDrop))
	mux.Handle("POST /dashboard/dead/drop", d.changing(d.drop))
	mux.HandleFunc("/", d.notFound)
	return mux
}

// policy lets nothing in that we have not embedded, and nobody frame us.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers one request.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a form's origin would be null, and refused where there is no TLS
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
	d.mux.ServeHTTP(w, r)
}
