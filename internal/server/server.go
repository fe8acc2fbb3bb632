// Package server is Lockstep's HTTP side: changes in, metrics and health out.
//
//	POST   /api/v1/changes               publish one change: 202 with its id and entry; 400, 413, 503 with an error
//	GET    /api/v1/changes/{entry}       its result: 200; 202 while there is none, after ?wait=30s (at most 60s); 404, 429
//	GET    /api/v1/repos                 what is known of repositories; ?prefix= ?limit= ?after=
//	GET    /api/v1/repos/{repo}          all that is known of one; 404
//	GET    /api/v1/locks                 the leases that are held
//	GET    /api/v1/locks/{repo}          one lock: who holds it, since when, and who waits
//	DELETE /api/v1/locks/{repo}?fence=N  take that very lease away: 200 with who had it; 409 when another is out
//	GET    /api/v1/streams               how long the streams are, and how far behind each group is
//	GET    /api/v1/dead                  dead letters, newest first; ?repo= ?reason= ?order=oldest ?limit= ?after=
//	GET    /api/v1/dead/{id}             one of them, with its event: 404
//	POST   /api/v1/dead/{id}/retry       put its entry back into its stream: 200 with the new entry's id; 404, 409
//	DELETE /api/v1/dead/{id}             drop it for good
//	GET    /api/v1/watches               who watches what; ?prefix= ?app= ?limit= ?after=
//	PUT    /api/v1/watches               put one watch: 201, 200 if it was there; 400, 409 when it excludes another, 413
//	DELETE /api/v1/watches               ?repo= ?app= ?ref=: remove one; 404
//	POST   /hooks/{source}               a forge's webhook: 202 with what became of it; 200 to a ping; 400, 401, 404, 413, 429, 503
//	GET    /api/v1/openapi.yaml          all of this as an OpenAPI document
//	GET    /, /dashboard/…               the dashboard, if there is one
//	GET    /metrics                      Prometheus
//	GET    /livez                        200 as long as the process works, else 503; ?verbose
//	GET    /readyz                       200 when work may be sent to it, else 503; ?verbose for each handler and dependency
//
// What changes something, or shows a result or a watch, wants the bearer token, or else is 401; without a token it is 403 unless the
// listener and the request are of this machine. A 202 means that the change is in the Redis stream, as
// durable as that Redis is. Webhooks are guarded by their signatures alone; their 202 may also mean that the
// delivery is synced to this machine's disk, until Redis is back.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
)

const (
	maxBody         = 1 << 20 // bytes
	publishTimeout  = 5 * time.Second
	shutdownTimeout = 5 * time.Second

	retryAfter = "5" // seconds, while Redis is away
)

// Config configures a Server.
type Config struct {
	Publisher message.Publisher // takes changes; nil: this process receives none
	Topic     string            // of the changes
	Changes   Changes           // what became of them; nil: nobody can tell
	Repos     Repos             // to show; nil: none
	Locks     Locks             // to show and to break; nil: none, and no repositories
	Dead      Dead              // letters to show, retry and drop; nil: none
	Streams   Streams           // to show; nil: none
	Watches   Watches           // to show, put and remove; nil: none
	Hooks     *Hooks            // takes webhooks; nil: there are none
	Dashboard http.Handler      // answers / and what is below /dashboard/; nil: there is none
	Token     string            // bearer token for what changes something; empty: this machine alone may do it
	Loopback  bool              // only this machine can connect; Serve sees for itself
	Live      *Health           // whether the process works; nil: it does
	Ready     *Health           // whether work may be sent to it; nil: it may
	Metrics   http.Handler
	Log       *slog.Logger
	Tracer    trace.Tracer // makes spans of what asks for changes; nil: there are none

	running context.Context // done when Serve is told to stop; nil: it never is
}

// Serve answers on listener until ctx is done, then lets requests in flight finish, briefly.
func Serve(ctx context.Context, listener net.Listener, cfg Config) error {
	cfg.Loopback = Loopback(listener)
	cfg.running = ctx
	return serve(ctx, listener, newServer(Handler(cfg), cfg.Log))
}

// newServer is a server whose clients have bounded time and room.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// serve runs srv until ctx is done, and then until requests in flight have ended, or their time is up.
func serve(ctx context.Context, listener net.Listener, srv *http.Server) error {
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(listener) }()
	select {
	case err := <-stopped:
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(shutdown); err != nil {
		return fmt.Errorf("stop HTTP: requests are cut off: %w", errors.Join(err, srv.Close()))
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Handler is the server's handler.
func Handler(cfg Config) http.Handler {
	// A page in somebody's browser must not reach a receiver that trusts its loopback interface.
	return http.NewCrossOriginProtection().Handler(mount(cfg))
}

// routes is a mux that knows its patterns, which openapi.yaml is held against.
type routes struct {
	http.ServeMux
	patterns []string
}

func (r *routes) Handle(pattern string, handler http.Handler) {
	r.patterns = append(r.patterns, pattern)
	r.ServeMux.Handle(pattern, handler)
}

func (r *routes) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	r.Handle(pattern, http.HandlerFunc(handler))
}

// mount puts a handler behind each pattern that cfg has one for.
func mount(cfg Config) *routes {
	mux := &routes{}
	if cfg.Publisher != nil {
		mux.Handle("POST /api/v1/changes", guarded(cfg, traced(cfg.Tracer, receive(cfg))))
	}
	if cfg.Changes != nil {
		running := cfg.running
		if running == nil {
			running = context.Background()
		}
		mux.Handle("GET /api/v1/changes/{entry}", guarded(cfg, showChange(cfg.Changes, running)))
	}
	if cfg.Repos != nil && cfg.Locks != nil {
		mux.Handle("GET /api/v1/repos", listRepos(cfg.Repos))
		mux.Handle("GET /api/v1/repos/{repo...}", showRepo(cfg.Repos, cfg.Locks))
	}
	if cfg.Locks != nil {
		mux.Handle("GET /api/v1/locks", listLocks(cfg.Locks))
		mux.Handle("GET /api/v1/locks/{repo...}", showLock(cfg.Locks))
		mux.Handle("DELETE /api/v1/locks/{repo...}", guarded(cfg, releaseLock(cfg.Locks)))
	}
	if cfg.Dead != nil {
		mux.Handle("GET /api/v1/dead", listDead(cfg.Dead))
		mux.Handle("GET /api/v1/dead/{id}", guarded(cfg, showDead(cfg.Dead)))
		mux.Handle("POST /api/v1/dead/{id}/retry", guarded(cfg, retryDead(cfg.Dead)))
		mux.Handle("DELETE /api/v1/dead/{id}", guarded(cfg, dropDead(cfg.Dead)))
	}
	if cfg.Streams != nil {
		mux.Handle("GET /api/v1/streams", listStreams(cfg.Streams))
	}
	if cfg.Watches != nil {
		mux.Handle("GET /api/v1/watches", guarded(cfg, listWatches(cfg.Watches)))
		mux.Handle("PUT /api/v1/watches", guarded(cfg, traced(cfg.Tracer, putWatch(cfg.Watches))))
		mux.Handle("DELETE /api/v1/watches", guarded(cfg, traced(cfg.Tracer, removeWatch(cfg.Watches))))
	}
	if cfg.Hooks != nil {
		mux.Handle("POST /hooks/{source}", takeHook(*cfg.Hooks, cfg.Log, cfg.Tracer))
	}
	if cfg.Dashboard != nil {
		mux.Handle("GET /{$}", cfg.Dashboard)
		mux.Handle("/dashboard/", cfg.Dashboard)
	}
	mux.Handle("GET /metrics", cfg.Metrics)
	probes(mux, cfg.Live, cfg.Ready)
	mux.Handle("GET /api/v1/openapi.yaml", describe())
	return mux
}

func receive(cfg Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
				fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", maxBody))
				return
			}
			fail(w, http.StatusBadRequest, errors.New("the body could not be read"))
			return
		}
		change, err := events.ParseChange(body)
		if err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		if change.ID == "" {
			change.ID = uuid.NewString()
		}
		if change.Time.IsZero() {
			change.Time = time.Now().UTC()
		}
		entry, err := publish(r.Context(), cfg, change)
		if err != nil {
			cfg.Log.ErrorContext(r.Context(), "change not published", "repo", change.Repo.String(), "job", change.ID, "error", err)
			w.Header().Set("Retry-After", retryAfter)
			fail(w, http.StatusServiceUnavailable, errors.New("Redis does not take the change now; try again"))
			return
		}
		if entry != "" && cfg.Changes != nil {
			w.Header().Set("Location", "/api/v1/changes/"+entry)
		}
		reply(w, http.StatusAccepted, accepted{change.ID, change.Repo.String(), entry})
	})
}

// publish returns the change's stream entry, if the publisher says.
func publish(ctx context.Context, cfg Config, change events.Change) (entry string, err error) {
	msg, err := stream.ChangeMessage(change)
	if err != nil {
		return "", err
	}
	describeChange(ctx, change)
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if publisher, ok := cfg.Publisher.(adder); ok {
		return publisher.Add(ctx, cfg.Topic, msg)
	}
	msg.SetContext(ctx)
	return "", cfg.Publisher.Publish(cfg.Topic, msg)
}

func fail(w http.ResponseWriter, status int, err error) {
	reply(w, status, map[string]string{"error": err.Error()})
}

// unavailable answers while Redis does not, when nothing was changed.
func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", retryAfter)
	fail(w, http.StatusServiceUnavailable, errors.New("Redis does not answer; try again"))
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
