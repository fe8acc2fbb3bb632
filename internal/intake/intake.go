package intake

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep/events"
	"lockstep/internal/cache"
	"lockstep/internal/egress"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

const maxStale = 5 // attempts while the registry changes concurrently

// Config configures an [Intake]. Registry and Sources are required.
type Config struct {
	Registry *watch.Registry
	Sources  *forge.Sources
	Spool    *spool.Spool // nil disables spooling: deliveries that Redis does not accept fail
	// how often to look for deliveries of dead processes in the spool, and to retry refused ones; default 15 s
	Adopt    time.Duration
	Rewrites egress.Rewrites            // of the URLs of watches: deliveries may name either URL
	Owns     func(events.RepoPath) bool // whether unknown repositories may be watched automatically here; nil permits all
	Log      *slog.Logger
	Drained  func(outcome string) // called for each delivery that leaves the spool, with its outcome or "dropped"; optional
	Tracer   trace.Tracer         // records a span of each delivery that leaves the spool; nil disables it

	RedisTimeout time.Duration // for all Redis calls of one delivery; default 400 ms
	SpoolTimeout time.Duration // for the disk write that follows; default 500 ms
}

// Intake accepts deliveries. It is safe for concurrent use.
type Intake struct {
	cfg   Config
	cache *cache.Recent[watch.RemoteWatches] // by remote; the registry checks their versions
}

// cacheWeight allows ten thousand remotes with nine watches each, a few dozen megabytes: each weighs one, and one for
// each of its watches. Remotes without watches are not kept, because their deliveries make no call that would check the
// version.
const cacheWeight = 100_000

// New returns an Intake.
func New(cfg Config) (*Intake, error) {
	if cfg.Registry == nil || cfg.Sources == nil {
		return nil, errors.New("intake: Config.Registry and Config.Sources are required")
	}
	cfg.Adopt = cmp.Or(cfg.Adopt, 15*time.Second)
	cfg.RedisTimeout = cmp.Or(cfg.RedisTimeout, 400*time.Millisecond)
	cfg.SpoolTimeout = cmp.Or(cfg.SpoolTimeout, 500*time.Millisecond)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Tracer = cmp.Or(cfg.Tracer, noop.NewTracerProvider().Tracer(""))
	if cfg.Drained == nil {
		cfg.Drained = func(string) {}
	}
	return &Intake{cfg: cfg, cache: cache.NewRecent[watch.RemoteWatches](cacheWeight)}, nil
}

// The results of a delivery.
const (
	Accepted  = "accepted"  // its changes are in the stream
	Duplicate = "duplicate" // it was accepted before, and is not done or was a minute ago
	Ignored   = "ignored"   // it leads to no change
	Spooled   = "spooled"   // it is stored on the local disk until Redis is available
)

// Outcome is the result of a delivery.
type Outcome struct {
	Result   string
	Delivery string // ID assigned by the forge, or else generated
	Changes  int    // number of changes, if accepted
	Why      string // reason, if ignored; one line

	Unwatched bool // it was ignored as nobody watches its repositories
}

// Take sends a verified delivery to Redis or, if that fails, to the spool. It takes less than a second by
// default and ignores ctx's cancellation. An error means that neither accepted the delivery; the forge may
// retry.
func (in *Intake) Take(ctx context.Context, src forge.Source, d forge.Delivery) (Outcome, error) {
	ctx = context.WithoutCancel(ctx) // the delivery should be accepted even if the client gives up
	received := time.Now().UTC()
	if len(d.Events) == 0 {
		return Outcome{Result: Ignored, Delivery: d.ID, Why: d.Ignored}, nil
	}
	if d.ID == "" {
		d.ID = rand.Text() // lets Redis detect our own retries
	}
	var spoolErr error
	if in.cfg.Spool != nil && in.cfg.Spool.Waiting() {
		if spoolErr = in.spool(ctx, d, received); spoolErr == nil {
			return Outcome{Result: Spooled, Delivery: d.ID}, nil
		}
	}
	redisCtx, cancel := context.WithTimeout(ctx, in.cfg.RedisTimeout)
	defer cancel()
	out, err := in.deliver(redisCtx, src, d, received)
	if err == nil {
		return out, nil
	}
	if spoolErr == nil {
		if spoolErr = in.spool(ctx, d, received); spoolErr == nil {
			return Outcome{Result: Spooled, Delivery: d.ID}, nil
		}
	}
	return Outcome{}, errors.Join(err, spoolErr)
}

// spooled is a delivery as stored in the spool.
type spooled struct {
	At       time.Time              `json:"at"`
	Delivery forge.Delivery         `json:"delivery"`
	Trace    propagation.MapCarrier `json:"trace,omitempty"` // trace context
}

func (in *Intake) spool(ctx context.Context, d forge.Delivery, received time.Time) error {
	if in.cfg.Spool == nil {
		return errors.New("spooling is disabled")
	}
	traceContext := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, traceContext)
	text, err := json.Marshal(spooled{At: received, Delivery: d, Trace: traceContext})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, in.cfg.SpoolTimeout)
	defer cancel()
	return in.cfg.Spool.Append(ctx, text)
}

// deliver sends a delivery to Redis. Its changes have the time at which it was received.
func (in *Intake) deliver(
	ctx context.Context, src forge.Source, d forge.Delivery, received time.Time,
) (Outcome, error) {
	out := Outcome{Delivery: d.ID}
	d.Events = slices.Clone(d.Events)
	for i, e := range d.Events {
		d.Events[i].URLs = in.cfg.Rewrites.WithWritten(e.URLs)
		d.Events[i].FromURLs = in.cfg.Rewrites.WithWritten(e.FromURLs)
	}
	fresh := false
	for range maxStale {
		watches, cached, err := in.watches(ctx, d, fresh)
		if err != nil {
			return out, err
		}
		plan := NewPlan(src, d, watches)
		if in.cfg.Owns != nil && len(plan.Auto) > 0 {
			plan.Auto = slices.DeleteFunc(plan.Auto, func(w watch.Watch) bool { return !in.cfg.Owns(w.Repo) })
			if len(plan.Auto) == 0 {
				plan.Ignored = "it is for another cell"
			}
		}
		switch {
		case len(plan.Auto) > 0:
			for _, w := range plan.Auto {
				err := in.cfg.Registry.Add(ctx, w)
				if err != nil && !isRedisError(err) {
					out.Result, out.Why = Ignored, "cannot be watched: "+err.Error()
					return out, nil
				}
				if err != nil {
					return out, err
				}
			}
			fresh = true
			continue
		case len(plan.Changes) == 0 && cached: // the cache may be outdated
			fresh = true
			continue
		case len(plan.Changes) == 0:
			out.Result, out.Why, out.Unwatched = Ignored, plan.Ignored, plan.Unwatched
			return out, nil
		}
		for i := range plan.Changes {
			plan.Changes[i].Time = received
		}
		versions := make(map[string]string, len(watches))
		for remote, found := range watches {
			versions[remote] = found.Version
		}
		verdict, err := in.cfg.Registry.Accept(ctx, watch.Delivery{Versions: versions, Changes: plan.Changes})
		if err != nil {
			return out, err
		}
		switch verdict {
		case watch.Accepted:
			out.Result, out.Changes = Accepted, len(plan.Changes)
			return out, nil
		case watch.Duplicate:
			out.Result = Duplicate
			return out, nil
		}
		fresh = true
	}
	return out, fmt.Errorf("accept delivery: the watches of %s keep changing", Repo(d))
}

// watches returns the watches of a delivery's remotes, by [watch.RemoteKey]. If fresh is set, it bypasses the cache.
func (in *Intake) watches(
	ctx context.Context, d forge.Delivery, fresh bool,
) (watches map[string]watch.RemoteWatches, cached bool, err error) {
	urls := concerned(d)
	watches = make(map[string]watch.RemoteWatches, len(urls))
	for _, url := range urls {
		remote := watch.RemoteKey(url)
		if _, done := watches[remote]; done {
			continue
		}
		if !fresh {
			if found, ok := in.cache.Get(remote); ok {
				watches[remote], cached = found, true
				continue
			}
		}
		found, err := in.cfg.Registry.ByRemote(ctx, url)
		if err != nil {
			return nil, false, err
		}
		weight := len(found.Watches)
		if weight > 0 {
			weight++
		}
		in.cache.Put(remote, found, weight)
		watches[remote] = found
	}
	return watches, cached, nil
}

// isRedisError reports whether err comes from Redis or its connection rather than from the registry.
func isRedisError(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return answered || isUnavailable(err)
}

// Repo returns the name of the first repository of a delivery, for logs.
func Repo(d forge.Delivery) string {
	if len(d.Events) == 0 {
		return ""
	}
	return d.Events[0].Name()
}

// isUnavailable reports whether Redis is unreachable, so that every delivery would fail.
func isUnavailable(err error) bool {
	return redisx.Unavailable(err) || errors.Is(err, context.Canceled)
}
