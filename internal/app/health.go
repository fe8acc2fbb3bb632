package app

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"lockstep/internal/config"
	"lockstep/internal/server"
	"lockstep/internal/volume"
)

// The handlers of a process, by the names that health has for them.
const (
	changesHandler   = "changes"
	schedulerHandler = "scheduler"
	notifierHandler  = "notifier"
	hooksHandler     = "hooks" // takes webhooks from the spool
)

// vitals are what a process knows of its own health. Nil: nobody asks.
type vitals struct {
	pulses map[string]*pulse // of the handlers that it has
	volume atomic.Pointer[string]
}

func newVitals(cfg Config) *vitals {
	v := &vitals{pulses: map[string]*pulse{}}
	for handler, has := range map[string]bool{
		changesHandler:   cfg.Has(config.RoleWorker),
		schedulerHandler: cfg.Has(config.RoleScheduler),
		notifierHandler:  cfg.Has(config.RoleNotifier),
		hooksHandler:     cfg.hooks.spools(),
	} {
		if has {
			v.pulses[handler] = newPulse()
		}
	}
	if p := v.pulses[hooksHandler]; p != nil {
		p.quiet = true // one turn of its loop brings many deliveries to Redis, however slow that is
	}
	return v
}

// of is the pulse of a handler, nil when there is none.
func (v *vitals) of(handler string) *pulse {
	if v == nil {
		return nil
	}
	return v.pulses[handler]
}

// opened notes which volume the worker has opened.
func (v *vitals) opened(id string) {
	if v != nil {
		v.volume.Store(&id)
	}
}

// health is what /livez and /readyz say of a process that is told to stop when running ends. It is
//
//   - live unless a loop of its own hangs. Nothing that it depends on is a reason to start it anew;
//   - ready when work may be sent to it: Redis answers, or else webhooks are kept on disk, and all that it runs does run.
//     A volume that is away does not keep webhooks from a process that takes them.
//
// Names and reasons are for anybody to read.
func health(running context.Context, cfg Config, client redis.UniversalClient) (live, ready *server.Health) {
	v, answers := cfg.vitals, func(ctx context.Context) error { return redisAnswers(ctx, client) }
	checks := []server.Check{
		{Name: "shutdown", Now: func() error {
			if running.Err() != nil {
				return errors.New("this process is stopping")
			}
			return nil
		}},
		{Name: "redis", Alternative: "spool", Run: func(ctx context.Context) error {
			err := answers(ctx)
			if worker := v.of(changesHandler); err == nil && worker != nil && errors.Is(worker.Ready(), errAwaiting) {
				err = errors.New("it answers, and cannot be used yet")
			}
			return err
		}},
	}
	if cfg.hooks.spools() {
		checks = append(checks, server.Check{Name: "spool", Alternative: "redis", Run: func(context.Context) error { return mayWrite(cfg.Spool) }})
	}
	if cfg.Has(config.RoleWorker) {
		takesRequests := cfg.Has(config.RoleReceiver) && cfg.Listen != ""
		checks = append(checks, server.Check{Name: "volume", NonCritical: takesRequests, Run: func(context.Context) error {
			return volumeAtHand(cfg.Root, v.volume.Load())
		}})
	}
	var alive []server.Check
	for _, handler := range []string{changesHandler, schedulerHandler, notifierHandler, hooksHandler} {
		p := v.of(handler)
		if p == nil {
			continue
		}
		checks = append(checks, server.Check{Name: handler, DependsOn: "redis", Now: p.Ready})
		alive = append(alive, server.Check{Name: handler, Run: func(ctx context.Context) error {
			return p.alive(func() error { return answers(ctx) })
		}})
	}
	return server.NewHealth(alive...), server.NewHealth(checks...)
}

// redisAnswers is nil when Redis does. Of what it says otherwise only the kind is repeated.
func redisAnswers(ctx context.Context, client redis.UniversalClient) error {
	err := client.Ping(ctx).Err()
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return fmt.Errorf("it refuses: %s", firstWord(reply.Error()))
	}
	if err != nil {
		return errors.New("it does not answer")
	}
	return nil
}

// firstWord is the code that an error of Redis begins with, such as NOAUTH.
func firstWord(text string) string {
	end := 0
	for end < min(len(text), 20) && text[end] >= 'A' && text[end] <= 'Z' {
		end++
	}
	if end == 0 {
		return "ERR"
	}
	return text[:end]
}

// volumeAtHand is nil when the volume that was opened is still there and lets itself be written to. It writes nothing.
func volumeAtHand(root string, opened *string) error {
	if opened == nil {
		return errors.New("it is not open yet")
	}
	vol, err := volume.ViewVolume(root)
	switch {
	case errors.Is(err, volume.ErrNoVolume):
		return errors.New("there is none at the root: is it mounted?")
	case err != nil:
		return plainly(err)
	case vol.ID() != *opened:
		return errors.New("another one is mounted than was at the start")
	}
	return mayWrite(vol.Root())
}

// mayWrite is nil for a folder that may be written to.
func mayWrite(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return plainly(err)
	}
	return nil
}

// plainly is an error of the file system without its path.
func plainly(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errors.New(errno.Error())
	}
	return errors.New("it cannot be read")
}
