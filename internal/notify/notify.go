package notify

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/egress"
	"lockstep/internal/execute"
	"lockstep/internal/watch"
)

// Group is the consumer group on results.
const Group = "notify"

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
	Registry  *watch.Registry
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

	Grace time.Duration // for posts in flight after Run's context is done; default 25 s

	Log *slog.Logger // default slog.Default
	// called after each attempt or drop, with one of the Outcome constants; optional
	Observe func(outcome string, took time.Duration)
	// records a span of each attempt in the result's trace and propagates it to the app; nil disables it
	Tracer trace.Tracer

	limits
}

// limits are those of the documentation, but in tests.
type limits struct {
	schedule []time.Duration // delays before each attempt
	claim    time.Duration   // duration of a claim, three times the timeout at least: it must not end during a post
	timeout  time.Duration   // of one post
	perApp   int             // posts in flight to one app; one that fails gets 1
	total    int             // posts in flight, at most half of them to apps that fail
	boxItems int             // queued notifications of one repository for one app
	appBytes int             // size of the queued notifications for one app
}

// Outcomes of attempts, for [Config.Observe].
const (
	OutcomeDelivered = "delivered"
	OutcomeFailed    = "failed"    // will be retried
	OutcomeGivenUp   = "given up"  // dead letter: no attempts left
	OutcomeGone      = "gone"      // dead letter: the app answered 410
	OutcomeUnwatched = "unwatched" // dropped: the watch or its URL no longer exists, or there is no tree for the command
)

const dialTimeout = 5 * time.Second

// Notifier delivers results to apps. Any number of notifiers may share a Redis.
type Notifier struct {
	cfg    Config
	outbox Outboxes
	reader *stream.Reader
	client *http.Client
	wake   chan struct{} // signals that items may be due

	ran sync.Map // last tree of the runs whose own tree was gone, by app and published name
}

// withDefaults returns a configuration with everything that a post or a run needs.
func (cfg Config) withDefaults() Config {
	cfg.Namespace = cmp.Or(cfg.Namespace, events.DefaultNamespace)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "lockstep")
	cfg.Grace = cmp.Or(cfg.Grace, 25*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.claim, cfg.timeout = cmp.Or(cfg.claim, time.Minute), cmp.Or(cfg.timeout, 15*time.Second)
	cfg.perApp, cfg.total = cmp.Or(cfg.perApp, 4), cmp.Or(cfg.total, 256)
	cfg.boxItems = cmp.Or(cfg.boxItems, 25_000) // two pushes that change all views
	cfg.appBytes = cmp.Or(cfg.appBytes, 64<<20)
	if cfg.schedule == nil {
		cfg.schedule = defaultSchedule()
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, time.Duration) {}
	}
	return cfg
}

// New returns a Notifier. It does not start it; see [Notifier.Run].
func New(cfg Config) (*Notifier, error) {
	cfg = cfg.withDefaults()
	switch {
	case cfg.Redis == nil || cfg.Reader == nil || cfg.Registry == nil || cfg.Secrets == nil:
		return nil, errors.New("notify: Config.Redis, Reader, Registry and Secrets are required")
	case len(cfg.Commands) > 0 && cfg.Mounted == nil:
		return nil, errors.New("notify: Config.Mounted is required with Commands")
	}
	client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Notifier{
		cfg: cfg, wake: make(chan struct{}, 1),
		outbox: Outboxes{Redis: cfg.Redis, Namespace: cfg.Namespace},
		reader: stream.NewReader(cfg.Reader),
		client: client,
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

// report logs the start and the end of an outage, which is in progress if down is set.
func (n *Notifier) report(ctx context.Context, down *bool, cause string, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil && !*down {
		n.cfg.Log.WarnContext(ctx, "notifications paused, will retry", "because", cause, "error", err)
	}
	if err == nil && *down {
		n.cfg.Log.InfoContext(ctx, "notifications resumed")
	}
	*down = err != nil
}
