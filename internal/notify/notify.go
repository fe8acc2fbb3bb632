package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/egress"
	"lockstep/internal/execute"
	"lockstep/internal/watch"
)

// Group is the consumer group on results.
const Group = "notify"

// Registry reads and silences watches. [watch.Registry] implements it.
type Registry interface {
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
	Silence(ctx context.Context, w watch.Watch, why string) error
}

// Secrets provides signing secrets. [credential.Store] implements it.
type Secrets interface {
	// SigningSecrets returns the secrets of a credential, newest first, or an error if they must not sign posts to url.
	SigningSecrets(name, url string) ([]string, error)
}

// Config configures a [Notifier]. Redis, Reader, Registry and Secrets are required.
type Config struct {
	Redis     redis.UniversalClient // never closed; must not retry by itself
	Reader    redis.UniversalClient // for blocking reads; closed when Run's context is done
	Namespace events.Namespace      // default "lockstep:{0}:"
	Registry  Registry
	Secrets   Secrets

	// Hosts lists the hosts that may be posted to, in the form of the setting notify-hosts. If empty, any host is
	// allowed that is not on a private network. Link-local addresses are never allowed.
	Hosts     []string
	Trust     *egress.Trust // certificate authorities; default: the system's
	UserAgent string        // default "lockstep"

	// Commands are run for apps in place of posts, by app, in the trees of the volume at Root.
	Commands map[string]execute.Command
	Root     string
	Mounted  func(context.Context) error // nil if the deployment's volume is at Root; required with Commands

	Schedule []time.Duration // delays before each attempt; default [DefaultSchedule]
	Timeout  time.Duration   // of one post; default 15 s, at most 20 s
	PerApp   int             // posts in flight to one app; default 4; a slow app gets 1
	Total    int             // posts in flight; default 256, at most half of them to slow apps
	// queued notifications of one repository for one app; default 25,000: two pushes that change all views
	BoxItems int
	AppItems int           // queued notifications for one app; default 100,000
	AppBytes int           // their size; default 64 MiB
	Grace    time.Duration // for posts in flight after Run's context is done; default 25 s

	Log *slog.Logger // default slog.Default
	// called after each attempt or drop, with one of the Outcome constants; optional
	Observe func(outcome string, took time.Duration)
	// records a span of each attempt in the result's trace and propagates it to the app; nil disables it
	Tracer trace.Tracer

	Propagator propagation.TextMapPropagator // writes the trace to the headers of posts; defaults to W3C Trace Context

	claim time.Duration // duration of a claim; shorter in tests
	hold  time.Duration // how long items outlive their watch; see outbox.held
}

// Outcomes of attempts, for [Config.Observe].
const (
	OutcomeDelivered = "delivered"
	OutcomeFailed    = "failed"    // will be retried
	OutcomeGivenUp   = "given up"  // dead letter: no attempts left
	OutcomeGone      = "gone"      // dead letter: the app answered 410
	OutcomeUnwatched = "unwatched" // dropped: the watch or its URL no longer exists, or there is no tree for the command
)

const (
	claimDuration   = time.Minute
	dialTimeout     = 5 * time.Second
	defaultTimeout  = 15 * time.Second
	renameRetention = 30 * 24 * time.Hour
)

// Notifier delivers results to apps. Any number of notifiers may share a Redis.
type Notifier struct {
	cfg    Config
	outbox outbox
	reader *stream.Reader
	client *http.Client
	wake   chan struct{} // signals that items may be due

	feeding, sending outage

	ran    sync.Map // last tree of the runs whose own tree was gone, by app and published name
	warned sync.Map // apps whose runs this notifier has no command for
}

// New returns a Notifier. It does not start it; see [Notifier.Run].
func New(cfg Config) (*Notifier, error) {
	cfg.Namespace = cmp.Or(cfg.Namespace, events.DefaultNamespace)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "lockstep")
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.PerApp, cfg.Total = cmp.Or(cfg.PerApp, 4), cmp.Or(cfg.Total, 256)
	cfg.BoxItems, cfg.AppItems = cmp.Or(cfg.BoxItems, 25_000), cmp.Or(cfg.AppItems, 100_000)
	cfg.AppBytes = cmp.Or(cfg.AppBytes, 64<<20)
	cfg.Grace = cmp.Or(cfg.Grace, 25*time.Second)
	cfg.claim, cfg.hold = cmp.Or(cfg.claim, claimDuration), cmp.Or(cfg.hold, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	if cfg.Schedule == nil {
		cfg.Schedule = DefaultSchedule()
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, time.Duration) {}
	}
	switch {
	case cfg.Redis == nil || cfg.Reader == nil || cfg.Registry == nil || cfg.Secrets == nil:
		return nil, errors.New("notify: Config.Redis, Reader, Registry and Secrets are required")
	case len(cfg.Commands) > 0 && cfg.Mounted == nil:
		return nil, errors.New("notify: Config.Mounted is required with Commands")
	case len(cfg.Schedule) == 0:
		return nil, errors.New("notify: the Schedule is empty")
	case cfg.Timeout < 0 || cfg.Timeout > cfg.claim/3:
		return nil, fmt.Errorf("notify: Timeout %v: want at most %v, or a claim could end during a post", cfg.Timeout,
			cfg.claim/3)
	case min(cfg.PerApp, cfg.Total, cfg.BoxItems, cfg.AppItems, cfg.AppBytes) < 0 || cfg.Grace < 0:
		return nil, errors.New("notify: a limit is negative")
	}
	hosts, err := egress.ParseHosts("notify-hosts", cfg.Hosts)
	if err != nil {
		return nil, err
	}
	return &Notifier{
		cfg: cfg, wake: make(chan struct{}, 1),
		outbox:  newOutbox(cfg),
		reader:  stream.NewReader(cfg.Reader),
		client:  newClient(cfg, egress.Policy{Hosts: hosts, Foreign: true, Timeout: dialTimeout}),
		feeding: outage{log: cfg.Log, cause: "results cannot be queued"},
		sending: outage{log: cfg.Log, cause: "notifications cannot be claimed"},
	}, nil
}

// Run delivers notifications until ctx is done, then waits up to the grace period for posts in flight. It
// survives Redis outages. It must be called only once.
func (n *Notifier) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = n.cfg.Reader.Close() })() // ends a blocking read
	defer n.client.CloseIdleConnections()
	var both sync.WaitGroup
	both.Go(func() { n.feed(ctx) })
	both.Go(func() { n.send(ctx) })
	both.Wait()
}

func (n *Notifier) wakeSender() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// outage logs the start and end of an outage. It is not safe for concurrent use.
type outage struct {
	log   *slog.Logger
	cause string
	began bool
}

func (o *outage) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !o.began:
		o.began = true
		o.log.WarnContext(ctx, "notifications paused, will retry", "because", o.cause, "error", err)
	case err == nil && o.began:
		o.began = false
		o.log.InfoContext(ctx, "notifications resumed")
	}
}
