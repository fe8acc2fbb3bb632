package notify

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/internal/egress"
	"lockstep/internal/watch"
)

// Group is the consumer group on results.
const Group = "notify"

// Registry knows the watches; [watch.Registry] does.
type Registry interface {
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
	Silence(ctx context.Context, w watch.Watch, why string) error
}

// Secrets knows what notifications are signed with; [credential.Store] does.
type Secrets interface {
	// SigningSecrets returns the secrets of a credential, the newest first, if they may sign what is
	// posted to url.
	SigningSecrets(name, url string) ([]string, error)
}

// Config says what a [Notifier] works with. Redis, Reader, Registry and Secrets are required; the zero values of
// the others take the defaults.
type Config struct {
	Redis     redis.UniversalClient // never closed; must not retry by itself
	Reader    redis.UniversalClient // one of its connections waits for news, and each turn uses it; Run closes it when it is told to end
	Namespace events.Namespace      // default "lockstep:{0}:"
	Registry  Registry
	Secrets   Secrets

	// Hosts lists what may be posted to, as the setting notify-hosts does. Of none: any host that is not on a
	// private network. A link-local address is never posted to.
	Hosts     []string
	TLS       *tls.Config // default: the system's authorities
	UserAgent string      // default "lockstep"

	Schedule  []time.Duration // delays before each attempt; default [DefaultSchedule]
	Timeout   time.Duration   // of one post; default 15 s, 20 s at most
	PerApp    int             // posts in flight to one app; default 4; to one that is slow: 1
	Total     int             // posts in flight; default 256, at most half of them to slow apps
	BoxItems  int             // notifications that may wait for one app, of one repository; default 1,000
	AppItems  int             // notifications that may wait for one app; default 100,000
	AppBytes  int             // that these may have; default 64 MiB
	DeadItems int             // dead letters that are kept; default 50,000
	Grace     time.Duration   // that posts in flight have once Run is told to end; default 25 s

	Log     *slog.Logger                             // default slog.Default
	Observe func(outcome string, took time.Duration) // of each attempt, or drop; outcome is one of the Outcome constants
	Tracer  trace.Tracer                             // makes a span of each attempt, in the trace of its result, of which the app is told; nil: none

	claim time.Duration // how long a claim lasts; tests have less time
	hold  time.Duration // how long what waits outlives its watch; see outbox.held
	newer time.Duration // how long what a newer version has written is left to it
}

// Outcomes of attempts, for [Config.Observe].
const (
	OutcomeDelivered = "delivered"
	OutcomeFailed    = "failed"    // to be sent again
	OutcomeGivenUp   = "given up"  // a dead letter: attempts used up
	OutcomeGone      = "gone"      // a dead letter: the app does not want any more
	OutcomeUnwatched = "unwatched" // dropped: nobody watches, or wants to be told, any more
)

const (
	claimLasts   = time.Minute
	dialWithin   = 5 * time.Second
	renamesKnown = 30 * 24 * time.Hour
)

// Notifier delivers results to apps. Any number of them may run on one Redis.
type Notifier struct {
	cfg    Config
	outbox outbox
	client *http.Client
	wake   chan struct{} // there may be something to claim

	feeding, sending trouble
}

// New makes a Notifier.
func New(cfg Config) (*Notifier, error) {
	cfg.Namespace = cmp.Or(cfg.Namespace, events.DefaultNamespace)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "lockstep")
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	cfg.PerApp, cfg.Total = cmp.Or(cfg.PerApp, 4), cmp.Or(cfg.Total, 256)
	cfg.BoxItems, cfg.AppItems = cmp.Or(cfg.BoxItems, 1_000), cmp.Or(cfg.AppItems, 100_000)
	cfg.AppBytes, cfg.DeadItems = cmp.Or(cfg.AppBytes, 64<<20), cmp.Or(cfg.DeadItems, 50_000)
	cfg.Grace = cmp.Or(cfg.Grace, 25*time.Second)
	cfg.claim, cfg.hold = cmp.Or(cfg.claim, claimLasts), cmp.Or(cfg.hold, time.Minute)
	cfg.newer = cmp.Or(cfg.newer, newerWait)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Schedule == nil {
		cfg.Schedule = DefaultSchedule()
	}
	if cfg.Observe == nil {
		cfg.Observe = func(string, time.Duration) {}
	}
	switch {
	case cfg.Redis == nil || cfg.Reader == nil || cfg.Registry == nil || cfg.Secrets == nil:
		return nil, errors.New("notify: Config.Redis, Reader, Registry and Secrets are required")
	case len(cfg.Schedule) == 0:
		return nil, errors.New("notify: a Schedule without an attempt")
	case cfg.Timeout < 0 || cfg.Timeout > cfg.claim/3:
		return nil, fmt.Errorf("notify: Timeout %v: want at most %v, or a claim could end in mid-post", cfg.Timeout, cfg.claim/3)
	case min(cfg.PerApp, cfg.Total, cfg.BoxItems, cfg.AppItems, cfg.AppBytes, cfg.DeadItems) < 0 || cfg.Grace < 0:
		return nil, errors.New("notify: a negative bound")
	}
	hosts, err := egress.ParseHosts("notify-hosts", cfg.Hosts)
	if err != nil {
		return nil, err
	}
	return &Notifier{
		cfg: cfg, wake: make(chan struct{}, 1),
		outbox:  newOutbox(cfg),
		client:  newClient(cfg, egress.Policy{Hosts: hosts, Foreign: true, Timeout: dialWithin}),
		feeding: trouble{log: cfg.Log, what: "results are not taken up for notifications"},
		sending: trouble{log: cfg.Log, what: "notifications are not sent"},
	}, nil
}

// Run delivers until ctx is done, and then for the grace at most. It outlasts a Redis that is away. It is to
// be called once.
func (n *Notifier) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = n.cfg.Reader.Close() })() // or a read that waits would go on
	defer n.client.CloseIdleConnections()
	var both sync.WaitGroup
	both.Go(func() { n.feed(ctx) })
	both.Go(func() { n.send(ctx) })
	both.Wait()
}

// stir has the sender look for what is due.
func (n *Notifier) stir() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// trouble logs once that something fails and once that it does no more. It belongs to one goroutine.
type trouble struct {
	log  *slog.Logger
	what string
	in   bool
}

func (t *trouble) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && !t.in:
		t.in = true
		t.log.WarnContext(ctx, "notifications stand still for now", "because", t.what, "error", err)
	case err == nil && t.in:
		t.in = false
		t.log.InfoContext(ctx, "notifications go on")
	}
}

// pause waits, unless ctx is done first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
