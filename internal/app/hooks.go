package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/server"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

// hookReceiver is what takes webhooks in a process that has sources of them.
type hookReceiver struct {
	http   server.Hooks
	intake *intake.Intake
	client redis.UniversalClient
	spool  *spool.Spool // nil: none
}

// openHooks makes a hookReceiver, or returns nil when there are no sources. The caller closes it.
func openHooks(cfg Config) (*hookReceiver, error) {
	sources, err := forge.LoadSources(cfg.Hooks, os.Environ())
	if err != nil {
		return nil, invalid(err)
	}
	if len(sources.Names()) == 0 {
		if cfg.Hooks != "" {
			return nil, invalid(errors.New("webhook sources: " + cfg.Hooks + " has none; a source is a folder with the files forge and secret"))
		}
		return nil, nil
	}
	h := &hookReceiver{client: cfg.Redis.Open()} // of its own: nobody else is to keep its connections busy
	var spooled func() (int, int64)
	if cfg.Config.Redis != "" && cfg.Spool != "" { // an embedded Redis is away when we are
		if h.spool, err = spool.Open(cfg.Spool, spool.Config{MaxBytes: cfg.SpoolMaxBytes, Log: cfg.Log}); err != nil {
			_ = h.client.Close()
			return nil, fmt.Errorf("%w; choose another folder with --spool", err)
		}
		spooled = h.spool.Stats
	}
	metrics := cfg.Metrics.Hooks(spooled)
	h.intake, err = intake.New(intake.Config{
		Registry: watch.NewRegistry(h.client, cfg.Namespace()), Sources: sources, Spool: h.spool, Keep: cfg.DeliveriesKeep,
		Log: cfg.Log, Drained: metrics.Drained, Tracer: cfg.Traces.Tracer("receiver"),
	})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.http = server.Hooks{Sources: sources, Intake: h.intake, Observe: metrics.Request}
	return h, nil
}

// spools reports whether webhooks are taken while Redis is away.
func (h *hookReceiver) spools() bool { return h != nil && h.spool != nil }

// drain brings what is on disk to Redis until stop is called, which waits for its end.
func (h *hookReceiver) drain(ctx context.Context, p *pulse) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.runs()
		defer p.rests(errEnded)
		h.intake.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

// Close leaves what is on disk to whoever comes next.
func (h *hookReceiver) Close() error {
	if h == nil {
		return nil
	}
	var err error
	if h.spool != nil {
		err = h.spool.Close()
	}
	return errors.Join(err, h.client.Close())
}
