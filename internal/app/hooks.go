package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/credential"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/server"
	"lockstep/internal/spool"
	"lockstep/internal/watch"
)

const maxSpoolBytes = 1 << 30

// hookReceiver receives webhooks, and spools them to disk while Redis is unavailable.
type hookReceiver struct {
	http    server.Hooks
	intake  *intake.Intake
	others  *cellIntakes // nil without cells
	client  redis.UniversalClient
	journal *intake.Journal
	spool   *spool.Spool // optional
}

// openHooks returns nil if no webhook sources are configured. The caller must close the receiver.
func openHooks(cfg Config) (*hookReceiver, error) {
	sources, err := forge.LoadSources(cfg.Hooks, os.Environ())
	if err != nil {
		return nil, invalid(err)
	}
	if len(sources.Names()) == 0 {
		if cfg.Hooks != "" {
			return nil,
				invalid(errors.New("webhook sources: " + cfg.Hooks +
					" has none; a source is a directory with the files forge and secret"))
		}
		return nil, nil
	}
	if err := credential.Check(cfg.Credentials, os.Getenv, sources.Credentials()...); err != nil {
		return nil, invalid(err)
	}
	h := &hookReceiver{client: cfg.Redis.Open()} // not shared, so that webhooks never wait for a connection
	var spooled func() int64
	if cfg.Config.Redis != "" && cfg.Spool != "" { // an embedded Redis stops with this process
		if h.spool, err = spool.Open(cfg.Spool, maxSpoolBytes); err != nil {
			_ = h.client.Close()
			return nil, fmt.Errorf("%w; choose another directory with --spool", err)
		}
		spooled = h.spooled
	}
	metrics := cfg.Metrics.Hooks(spooled)
	base := intake.Config{
		Sources: sources, Rewrites: cfg.Rewrites,
		Log: cfg.Log, Drained: metrics.Drained, Tracer: cfg.Traces.Tracer("receiver"),
	}
	own := base
	own.Registry, own.Spool = watch.NewRegistry(h.client, cfg.Namespace()), h.spool
	if cfg.cells != nil {
		own.Owns = owns(cfg.cells, cfg.Cell)
	}
	if h.intake, err = intake.New(own); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	var taker server.Intake = h.intake
	if cfg.cells != nil {
		h.others = &cellIntakes{cfg: cfg, own: h.intake, base: base, others: map[cells.Member]*cellIntake{},
			open: func(namespace events.Namespace) *watch.Registry { return watch.NewRegistry(h.client, namespace) }}
		taker = h.others
	}
	h.journal = intake.NewJournal(h.client, cfg.Namespace())
	h.http = server.Hooks{Sources: sources, Intake: taker, Observe: metrics.Request, Record: h.journal.Record}
	return h, nil
}

// spooled returns the bytes in the spools of all cells.
func (h *hookReceiver) spooled() int64 {
	bytes := h.spool.Bytes()
	if h.others != nil {
		bytes += h.others.spooled()
	}
	return bytes
}

// spools reports whether webhooks are accepted while Redis is unavailable.
func (h *hookReceiver) spools() bool { return h != nil && h.spool != nil }

// drainSpool publishes spooled webhooks until stop is called. stop waits for the drain to end.
func (h *hookReceiver) drainSpool(ctx context.Context, hb *heartbeat) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		hb.running()
		defer hb.notReady(errEnded)
		var both sync.WaitGroup
		if h.others != nil {
			both.Go(func() { h.others.Run(ctx) })
		}
		both.Go(func() { h.intake.Run(ctx) })
		both.Wait()
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
