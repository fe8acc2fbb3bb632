package intake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/redisx"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

const (
	redisTime = 400 * time.Millisecond // for all that one delivery asks of Redis
	spoolTime = 500 * time.Millisecond // for the disk, after that
	staleMost = 5                      // times that the registry may have changed in between
)

// Config says what an [Intake] works with. Registry and Sources are required.
type Config struct {
	Registry *watch.Registry
	Sources  *forge.Sources
	Spool    *spool.Spool  // nil: none; what Redis does not take is refused
	Keep     time.Duration // for which a delivery is known when it comes again, or kept when Redis refuses it; 0: 72 h
	Adopt    time.Duration // how often it looks for what dead processes have left in the spool's folder; 0: 15 s
	Log      *slog.Logger
	Drained  func(outcome string) // told of each delivery that leaves the spool: how it ended, or "dropped"; nil: nobody is
	Tracer   trace.Tracer         // makes a span of each that leaves the spool; nil: there are none
}

// Intake takes deliveries. It is safe for concurrent use.
type Intake struct {
	cfg   Config
	cache *cache
	done  []spool.Item // Redis has them, and the spool still does; Run's alone
}

// New makes an Intake.
func New(cfg Config) (*Intake, error) {
	if cfg.Registry == nil || cfg.Sources == nil {
		return nil, errors.New("intake: Config.Registry and Config.Sources are required")
	}
	if cfg.Keep == 0 {
		cfg.Keep = 72 * time.Hour
	}
	if cfg.Adopt == 0 {
		cfg.Adopt = 15 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Drained == nil {
		cfg.Drained = func(string) {}
	}
	return &Intake{cfg: cfg, cache: newCache(cacheWeight)}, nil
}

// What became of a delivery.
const (
	Accepted  = "accepted"  // its changes are in the stream
	Duplicate = "duplicate" // they were before
	Ignored   = "ignored"   // there is nothing to be done about it
	Spooled   = "spooled"   // it is on this machine's disk, and will go to Redis when that is back
)

// Outcome is what became of a delivery.
type Outcome struct {
	Result   string
	Delivery string // its id: the forge's, or one made up
	Changes  int    // accepted: how many
	Why      string // ignored: why, one line
}

// Take brings a delivery that was verified to Redis, or else to the spool; it takes less than a second,
// whether or not ctx is done before. An error says that neither takes it: the forge may try again.
func (in *Intake) Take(ctx context.Context, src forge.Source, d forge.Delivery) (Outcome, error) {
	ctx = context.WithoutCancel(ctx) // who does not wait for the answer still wants it done
	received := time.Now().UTC()
	if len(d.Events) == 0 {
		return Outcome{Result: Ignored, Delivery: d.ID, Why: d.Ignored}, nil
	}
	if d.ID == "" {
		d.ID = rand.Text() // so that the ledger knows it when it is taken twice by us
	}
	var full error
	if in.cfg.Spool != nil && in.cfg.Spool.Len() > 0 {
		if full = in.keep(ctx, d, received); full == nil {
			return Outcome{Result: Spooled, Delivery: d.ID}, nil
		}
	}
	within, cancel := context.WithTimeout(ctx, redisTime)
	defer cancel()
	out, err := in.deliver(within, src, d, received)
	if err == nil {
		return out, nil
	}
	if full == nil {
		if full = in.keep(ctx, d, received); full == nil {
			return Outcome{Result: Spooled, Delivery: d.ID}, nil
		}
	}
	return Outcome{}, errors.Join(err, full)
}

var errNoSpool = errors.New("there is no spool")

// kept is a delivery as the spool keeps it. Its version grows when an older program would make something else of
// it, or nothing; Version and At are where they are in every version.
type kept struct {
	Version  int                    `json:"version"`
	At       time.Time              `json:"at"`
	Delivery forge.Delivery         `json:"delivery"`
	Trace    propagation.MapCarrier `json:"trace,omitempty"` // that it is part of
}

const keptVersion = 1

func (in *Intake) keep(ctx context.Context, d forge.Delivery, received time.Time) error {
	if in.cfg.Spool == nil {
		return errNoSpool
	}
	at := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, at)
	item, err := json.Marshal(kept{keptVersion, received, d, at})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, spoolTime)
	defer cancel()
	return in.cfg.Spool.Append(ctx, item)
}

// deliver brings a delivery to Redis. Its changes say when it was received.
func (in *Intake) deliver(ctx context.Context, src forge.Source, d forge.Delivery, received time.Time) (Outcome, error) {
	out := Outcome{Delivery: d.ID}
	fresh := false
	for range staleMost {
		placed, known, err := in.placed(ctx, d, fresh)
		if err != nil {
			return out, err
		}
		plan := NewPlan(src, d, placed)
		switch {
		case len(plan.Auto) > 0:
			for _, w := range plan.Auto {
				err := in.cfg.Registry.Add(ctx, w)
				if err != nil && !isRedis(err) {
					out.Result, out.Why = Ignored, "it cannot be watched: "+err.Error()
					return out, nil
				}
				if err != nil {
					return out, err
				}
			}
			fresh = true
			continue
		case len(plan.Changes) == 0 && known: // what was remembered may be why
			fresh = true
			continue
		case len(plan.Changes) == 0:
			out.Result, out.Why = Ignored, plan.Ignored
			return out, nil
		}
		for i := range plan.Changes {
			plan.Changes[i].Time = received
		}
		versions := make(map[string]string, len(placed))
		for place, at := range placed {
			versions[place] = at.Version
		}
		verdict, err := in.cfg.Registry.Accept(ctx, watch.Delivery{
			Source: src.Name, ID: d.ID, Keep: in.cfg.Keep, Versions: versions, Changes: plan.Changes,
		})
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
	return out, fmt.Errorf("what is watched of %s changes all the time", d.Events[0].Repo)
}

// placed returns what is watched of the remotes that a delivery concerns, by place, and whether any of it was
// remembered. Fresh, none is.
func (in *Intake) placed(ctx context.Context, d forge.Delivery, fresh bool) (placed map[string]watch.RemoteWatches, known bool, err error) {
	urls := Concerned(d)
	placed = make(map[string]watch.RemoteWatches, len(urls))
	for _, url := range urls {
		place := watch.RemoteKey(url)
		if _, again := placed[place]; again {
			continue
		}
		if !fresh {
			if at, ok := in.cache.get(place); ok {
				placed[place], known = at, true
				continue
			}
		}
		at, err := in.cfg.Registry.ByRemote(ctx, url)
		if err != nil {
			return nil, false, err
		}
		in.cache.put(place, at)
		placed[place] = at
	}
	return placed, known, nil
}

// isRedis reports whether err is Redis' or the way to it, as against what the registry has to say.
func isRedis(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return answered || isAway(err)
}

// Repo is the repository that a delivery is about, the first of several, for logs.
func Repo(d forge.Delivery) events.RepoPath {
	if len(d.Events) == 0 {
		return events.RepoPath{}
	}
	return d.Events[0].Repo
}

// isAway reports whether err is Redis' not being there, which all deliveries would meet.
func isAway(err error) bool { return redisx.Unavailable(err) || errors.Is(err, context.Canceled) }
