package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// heartbeat records whether a handler runs and when its loop last made progress. The loop beats on every
// iteration, and no iteration blocks for long. All setters accept a nil heartbeat.
type heartbeat struct {
	irregular bool // an iteration may take arbitrarily long: silence does not mean that the handler hangs

	mu   sync.Mutex
	why  error     // why the handler is not running; nil while it runs
	last time.Time // last beat or state change
	hung time.Time // when silence was first detected while Redis answered; zero if it was not
}

const (
	maxSilence = time.Minute     // longer than any iteration takes, Redis timeouts included
	hangAfter  = 2 * time.Minute // a handler silent this much longer while Redis answers has hung
)

// Reasons why a handler is not ready.
var (
	errStarting     = errors.New("starting")
	errWaitingRedis = errors.New("waiting for Redis")
	errDraining     = errors.New("draining")
	errEnded        = errors.New("ended")
)

func newHeartbeat() *heartbeat { return &heartbeat{why: errStarting, last: time.Now()} }

func (h *heartbeat) running() { h.notReady(nil) }

func (h *heartbeat) notReady(why error) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why, h.last, h.hung = why, time.Now(), time.Time{}
}

func (h *heartbeat) beat() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.hung = time.Now(), time.Time{}
}

// ready returns nil while the handler runs and beats.
func (h *heartbeat) ready() error {
	if silent := h.silence(); silent > maxSilence {
		return fmt.Errorf("no heartbeat for %v", silent.Round(time.Second))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// alive returns an error if the handler hangs: it stays silent although repeated calls of ping report that
// Redis answers. A process must not be restarted because a dependency fails.
func (h *heartbeat) alive(ping func() error) error {
	if h.silence() <= maxSilence {
		return nil
	}
	err := ping()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil || h.why != nil || time.Since(h.last) <= maxSilence:
		h.hung = time.Time{}
	case h.hung.IsZero():
		h.hung = time.Now()
	case time.Since(h.hung) > hangAfter:
		return fmt.Errorf("hanging: no heartbeat for %v although Redis answers", time.Since(h.last).Round(time.Second))
	}
	return nil
}

// silence returns the time since the last beat, 0 if the handler is not running or irregular.
func (h *heartbeat) silence() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why != nil || h.irregular {
		return 0
	}
	return time.Since(h.last)
}

// heartbeatHook beats on each command of a Redis client that only one loop uses.
type heartbeatHook struct{ *heartbeat }

func (h heartbeatHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h heartbeatHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.beat()
		return next(ctx, cmd)
	}
}

func (h heartbeatHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.beat()
		return next(ctx, cmds)
	}
}
