// Package server is Lockstep's HTTP API. It accepts changes and webhooks, and serves state, metrics and health checks.
// openapi.yaml describes every endpoint; [Handler] and [ServeAdmin] serve them.
//
// Requests that make changes, or read results, hosts, watches or payloads, need the bearer token and get 401
// without it. If no token is configured, they get 403 unless both the listener and the request are local, and
// a loopback listener answers only requests whose Host is local. A 202 means that the change is in the Redis
// stream, as durable as Redis is configured to be. Webhooks are authenticated by their signatures only; their
// 202 may also mean that the delivery is stored on the local disk until Redis is available.
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
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/operate"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
	"lockstep/locking"
)

const (
	maxBody         = 1 << 20 // bytes
	publishTimeout  = 5 * time.Second
	shutdownTimeout = 5 * time.Second

	retryAfter = "5" // seconds, while Redis is unavailable
)

// Config configures the server. Metrics and Log are required. A nil interface or pointer disables its endpoints.
type Config struct {
	Publisher *stream.Publisher                     // publishes changes
	Topic     string                                // stream of changes
	TopicOf   func(events.RepoPath) (string, error) // stream of the changes of a repository
	Changes   Changes
	Repos     *operate.Repos
	Leases    *operate.Leases
	Letters   *operate.Letters
	Outboxes  *operate.Outboxes
	Verdict   func(context.Context) (operate.Verdict, error)
	Workers   *operate.Workers
	Results   *operate.Results
	Streams   *telemetry.Streams
	Slots     int              // slots of each worker, for /api/v1/scale
	Hosts     *telemetry.Hosts // limits of requests to hosts
	Watches   *operate.Watches
	Hooks     *Hooks
	Reading   *Reading     // serves published trees
	Dashboard http.Handler // serves / and /dashboard/
	// bearer token for protected endpoints, read at each request; nil or "" allows local requests only
	Token func() string
	// addresses of proxies that authenticate users, forward any Host, and say whether clients use TLS
	Proxies  []netip.Prefix
	Loopback bool    // the listener accepts local connections only; set by Serve
	Live     *Health // nil always passes
	Ready    *Health // nil always passes
	Metrics  http.Handler
	Log      *slog.Logger
	Tracer   trace.Tracer // traces requests that make changes; nil disables tracing

	running context.Context // done when Serve stops; nil means never
}

// Serve serves HTTP on listener until ctx is done, and then waits up to shutdownTimeout for requests in flight.
func Serve(ctx context.Context, listener net.Listener, cfg Config) error {
	cfg.Loopback = Loopback(listener)
	cfg.running = ctx
	return serve(ctx, listener, newServer(Handler(cfg), cfg.Log))
}

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

// serve runs srv until ctx is done, and then waits up to shutdownTimeout for requests in flight.
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
		return fmt.Errorf("stop HTTP: requests in flight were aborted: %w", errors.Join(err, srv.Close()))
	}
	if err := <-stopped; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Handler returns the handler of [Serve].
func Handler(cfg Config) http.Handler {
	// Another site's page in a local browser must not reach a server that trusts local requests.
	return http.NewCrossOriginProtection().Handler(forLocalhost(cfg, forCell(cfg, plainRepos(cfg, mount(cfg)))))
}

// routes is a mux that records its patterns, so that tests can compare them with openapi.yaml.
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

func mount(cfg Config) *routes {
	mux := &routes{}
	if cfg.Publisher != nil {
		mux.Handle("POST /api/v1/changes", guarded(cfg, traced(cfg, receive(cfg))))
	}
	if cfg.Changes != nil {
		running := cfg.running
		if running == nil {
			running = context.Background()
		}
		mux.Handle("GET /api/v1/changes/{entry}", guarded(cfg, showChange(cfg.Changes, running)))
	}
	mountRepos(mux, cfg)
	if cfg.Reading != nil {
		cfg.Reading.mount(mux, cfg)
	}
	if cfg.Leases != nil {
		mux.Handle("GET /api/v1/locks", listLocks(cfg.Leases))
		mux.Handle("GET /api/v1/locks/{repo...}", showLock(cfg.Leases))
		mux.Handle("DELETE /api/v1/locks/{repo...}", guarded(cfg, releaseLock(cfg.Leases)))
	}
	if cfg.Letters != nil {
		mux.Handle("GET /api/v1/dead", listDead(cfg.Letters, cfg.admin))
		mux.Handle("POST /api/v1/dead/retry", guarded(cfg, retryDead(cfg.Letters)))
		mux.Handle("GET /api/v1/dead/{id}", guarded(cfg, oneDead(cfg.Letters.Get)))
		mux.Handle("POST /api/v1/dead/{id}/retry", guarded(cfg, oneDead(cfg.Letters.Retry)))
		mux.Handle("DELETE /api/v1/dead/{id}", guarded(cfg, oneDead(cfg.Letters.Drop)))
	}
	if cfg.Outboxes != nil {
		mux.Handle("GET /api/v1/outboxes", guarded(cfg, listOutboxes(cfg.Outboxes)))
		mux.Handle("GET /api/v1/outboxes/{app}", guarded(cfg, showOutbox(cfg.Outboxes)))
		mux.Handle("POST /api/v1/outboxes/{app}/send", guarded(cfg, sendOutbox(cfg.Outboxes)))
	}
	if cfg.Verdict != nil {
		mux.Handle("GET /api/v1/status", guarded(cfg, showVerdict(cfg.Verdict)))
	}
	if cfg.Results != nil {
		mux.Handle("GET /api/v1/results/{id...}", guarded(cfg, answering(func(r *http.Request) (any, error) {
			return cfg.Results.Get(r.Context(), r.PathValue("id"))
		})))
	}
	if cfg.Workers != nil {
		mux.Handle("GET /api/v1/workers", listWorkers(cfg.Workers))
		mux.Handle("DELETE /api/v1/workers/{name}", guarded(cfg, removeWorker(cfg.Workers)))
	}
	if cfg.Streams != nil {
		mux.Handle("GET /api/v1/streams", listStreams(cfg.Streams))
		mux.Handle("GET /api/v1/scale", showScale(cfg))
	}
	if cfg.Hosts != nil {
		mux.Handle("GET /api/v1/hosts", guarded(cfg, listHosts(cfg.Hosts)))
	}
	if cfg.Watches != nil {
		mux.Handle("GET /api/v1/watches", guarded(cfg, listWatches(cfg.Watches)))
		mux.Handle("PUT /api/v1/watches", guarded(cfg, traced(cfg, putWatch(cfg.Watches))))
		mux.Handle("DELETE /api/v1/watches", guarded(cfg, traced(cfg, removeWatch(cfg.Watches))))
	}
	if cfg.Hooks != nil {
		mux.Handle("POST /hooks/{source}", receiveHook(*cfg.Hooks, cfg))
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

// mountRepos serves the state of repositories: to anybody, except that apps see only their own.
func mountRepos(mux *routes, cfg Config) {
	var list, show http.Handler
	if cfg.Repos != nil {
		list, show = listRepos(cfg.Repos, cfg.admin), showRepo(cfg.Repos, cfg.admin)
		mux.Handle("DELETE /api/v1/repos/{repo...}", guarded(cfg, removeRepo(cfg.Repos)))
	}
	if s := cfg.Reading; s != nil {
		list, show = s.orForApps(cfg, list, s.listReadable), s.orForApps(cfg, show, s.showReadable)
	}
	if list != nil {
		mux.Handle("GET /api/v1/repos", list)
		mux.Handle("GET /api/v1/repos/{repo...}", show)
	}
}

func receive(cfg Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := readBody(w, r, maxBody)
		if !ok {
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
			cfg.Log.ErrorContext(r.Context(), "change not published", "repo", change.Repo.String(), "job", change.ID,
				"error", err)
			w.Header().Set("Retry-After", retryAfter)
			fail(w, http.StatusServiceUnavailable, errors.New("the change could not be written to Redis; try again"))
			return
		}
		if cfg.Changes != nil {
			w.Header().Set("Location", "/api/v1/changes/"+entry)
		}
		reply(w, http.StatusAccepted, accepted{change.ID, change.Repo.String(), entry})
	})
}

// readBody reads the request's body. If it fails or exceeds limit bytes, it responds with an error and returns false.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		return body, true
	}
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is longer than %d bytes", limit))
	} else {
		fail(w, http.StatusBadRequest, errors.New("the body could not be read"))
	}
	return nil, false
}

// pageLimit parses the parameter limit. It returns 0 if the parameter is absent.
func pageLimit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return 0, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > 1000 {
		return 0, errors.New("limit: want 1 to 1000")
	}
	return limit, nil
}

// publish publishes the change and returns its stream entry.
func publish(ctx context.Context, cfg Config, change events.Change) (entry string, err error) {
	msg, err := changes.Message(change)
	if err != nil {
		return "", err
	}
	describeChange(ctx, change)
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	topic, err := cfg.TopicOf(change.Repo)
	if err != nil {
		return "", err
	}
	return cfg.Publisher.Add(ctx, topic, msg)
}

func fail(w http.ResponseWriter, status int, err error) {
	reply(w, status, map[string]string{"error": err.Error()})
}

// problem is an error with the status to respond with.
type problem struct {
	error
	status int
}

func badRequest(err error) error { return problem{err, http.StatusBadRequest} }

// Problem returns an error with the status to respond with.
func Problem(err error, status int) error { return problem{err, status} }

// problems are errors about what a request names, by the status to respond with.
var problems = map[int][]error{
	http.StatusBadRequest: {stream.ErrBadID, watch.ErrBadAfter},
	http.StatusNotFound: {
		stream.ErrNoLetter, operate.ErrNoResult, operate.ErrNoWorker, operate.ErrUnknownRepo, cells.ErrNoCell,
	},
	http.StatusConflict: {
		stream.ErrNotRetryable, operate.ErrSeveralLetters, operate.ErrRepoStays, operate.ErrWorkerStays, locking.ErrNotHeld,
	},
}

// StatusOf returns the HTTP status for an error: 503, as Redis is unavailable, unless the request or what it names is at
// fault.
func StatusOf(err error) int {
	if p, ok := errors.AsType[problem](err); ok {
		return p.status
	}
	for status, all := range problems {
		if slices.ContainsFunc(all, func(one error) bool { return errors.Is(err, one) }) {
			return status
		}
	}
	return http.StatusServiceUnavailable
}

// Unavailable returns what to report if Redis is unavailable: an action may have been done.
func Unavailable(r *http.Request) error {
	if r.Method == http.MethodGet {
		return errors.New("Redis does not answer; try again")
	}
	return errors.New("Redis does not answer; check whether the change was made, then try again")
}

// answering responds with the body or the error that answer returns.
func answering(answer func(r *http.Request) (body any, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := answer(r); err != nil {
			failWith(w, r, err)
		} else {
			reply(w, http.StatusOK, body)
		}
	})
}

// failWith responds with an error, or that Redis is unavailable.
func failWith(w http.ResponseWriter, r *http.Request, err error) {
	status := StatusOf(err)
	if status == http.StatusServiceUnavailable && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		w.Header().Set("Retry-After", retryAfter)
	}
	p, isProblem := errors.AsType[problem](err)
	switch {
	case isProblem:
		err = p.error
	case status == http.StatusServiceUnavailable:
		err = Unavailable(r)
	}
	fail(w, status, err)
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
