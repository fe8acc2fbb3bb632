package app

import (
	"context"
	"errors"
	"os"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/cells"
	"lockstep/internal/credential"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/server"
)

const maxSpoolBytes = 1 << 30

// hookReceiver receives webhooks, and spools them to disk while Redis is unavailable.
type hookReceiver struct {
	http    server.Hooks
	intakes *cellIntakes
	client  redis.UniversalClient
	journal *intake.Journal
}

// openHooks returns nil if no webhook sources are configured. The caller must close the receiver.
func openHooks(cfg Config) (*hookReceiver, error) {
	sources, err := forge.LoadSources(cfg.Hooks, os.Environ())
	if err != nil {
		return nil, invalid(err)
	}
	if len(sources.Names()) == 0 {
		return nil, nil
	}
	if err := credential.Check(cfg.Credentials, os.Getenv, sources.Credentials()...); err != nil {
		return nil, invalid(err)
	}
	h := &hookReceiver{client: cfg.Redis.Open()} // not shared, so that webhooks never wait for a connection
	h.intakes = &cellIntakes{
		cfg: cfg, client: h.client, opened: map[cells.Member]*cellIntake{},
		spools: cfg.Config.Redis != "" && cfg.Spool != "", // an embedded Redis stops with this process
	}
	var spooled func() int64
	if h.intakes.spools {
		spooled = h.intakes.spooled
	}
	metrics := cfg.Metrics.Hooks(spooled)
	h.intakes.base = intake.Config{
		Sources: sources, Rewrites: cfg.Rewrites,
		Log: cfg.Log, Drained: metrics.Drained, Tracer: cfg.Traces.Tracer("receiver"),
	}
	if _, err := h.intakes.all(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.journal = intake.NewJournal(h.client, cfg.Namespace())
	h.http = server.Hooks{Sources: sources, Intake: h.intakes, Observe: metrics.Request, Record: h.journal.Record}
	return h, nil
}

// spools reports whether webhooks are accepted while Redis is unavailable.
func (h *hookReceiver) spools() bool { return h != nil && h.intakes.spools }

// drainSpool publishes spooled webhooks until stop is called. stop waits for the drain to end.
func (h *hookReceiver) drainSpool(ctx context.Context, hb *heartbeat) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		hb.running()
		defer hb.notReady(errEnded)
		h.intakes.Run(ctx)
	}()
	return func() { cancel(); <-done }
}

// Close closes the Redis client. Spooled webhooks stay on disk for the next process.
func (h *hookReceiver) Close() error {
	if h == nil {
		return nil
	}
	if h.journal != nil {
		h.journal.Close()
	}
	return h.client.Close()
}
