package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/server"
	"lockstep/internal/volume"
)

// Handlers of a process, as named by health checks and metrics.
const (
	changesHandler   = "changes"
	schedulerHandler = "scheduler"
	notifierHandler  = "notifier"
	hooksHandler     = "hooks"    // drains the spool of webhooks
	followerHandler  = "follower" // follows a reader
)

// health tracks the state of a process. A nil health ignores reports.
type health struct {
	heartbeats map[string]*heartbeat  // by handler
	volume     atomic.Pointer[string] // id of the volume that the worker opened
}

func newHealth(cfg Config) *health {
	h := &health{heartbeats: map[string]*heartbeat{}}
	for _, role := range rolesOf(cfg) {
		h.heartbeats[role.name] = newHeartbeat()
	}
	if cfg.hooks.spools() {
		h.heartbeats[hooksHandler] = newHeartbeat()
	}
	for _, handler := range []string{hooksHandler, followerHandler} {
		if hb := h.heartbeats[handler]; hb != nil {
			// one iteration drains many deliveries, or lists many repositories, however slow Redis or the reader is
			hb.irregular = true
		}
	}
	return h
}

// heartbeat returns the heartbeat of a handler, or nil if there is none.
func (h *health) heartbeat(handler string) *heartbeat {
	if h == nil {
		return nil
	}
	return h.heartbeats[handler]
}

func (h *health) volumeOpened(id string) {
	if h != nil {
		h.volume.Store(&id)
	}
}

// healthChecks returns the checks for /livez and /readyz. The process begins to stop when running ends. It is
//
//   - live unless one of its loops hangs: a failing dependency is no reason for a restart;
//   - ready when it can accept work: all its handlers run, and Redis answers or webhooks can be spooled to
//     disk. A missing volume does not keep webhooks from a process that accepts them.
//
// Names and reasons are public, so they contain no addresses and no paths.
func healthChecks(running context.Context, cfg Config, client redis.UniversalClient) (live, ready *server.Health) {
	h := cfg.health
	checks := []server.Check{
		{Name: "shutdown", Now: func() error {
			if running.Err() != nil {
				return errors.New("this process is stopping")
			}
			return nil
		}},
		{Name: "redis", Alternative: "spool", Run: func(ctx context.Context) error {
			err := pingRedis(ctx, client, cfg.Namespace())
			if worker := h.heartbeat(changesHandler); err == nil && worker != nil && errors.Is(worker.ready(), errWaitingRedis) {
				err = errors.New("answers, but cannot be used yet")
			}
			return err
		}},
	}
	if cfg.hooks.spools() {
		checks = append(checks, server.Check{Name: "spool", Alternative: "redis", Run: func(context.Context) error {
			return checkWritable(cfg.Spool)
		}})
	}
	if cfg.Has(config.RoleWorker) {
		takesRequests := cfg.Has(config.RoleReceiver) && cfg.Listen != ""
		checks = append(checks, server.Check{Name: "volume", NonCritical: takesRequests, Run: func(context.Context) error {
			return checkVolume(cfg.Root, h.volume.Load())
		}})
	}
	if cfg.Has(config.RoleReader) && !cfg.Has(config.RoleWorker) {
		checks = append(checks, server.Check{Name: "volume", DependsOn: "redis",
			NonCritical: cfg.Has(config.RoleReceiver), Run: func(ctx context.Context) error {
				if vol, err := ViewVolume(ctx, cfg.Config, client); err != nil || vol == nil {
					return errors.New("is not the deployment's volume, or cannot be read")
				}
				return nil
			}})
	}
	var alive []server.Check
	for _, handler := range []string{changesHandler, schedulerHandler, notifierHandler, hooksHandler, followerHandler} {
		hb := h.heartbeat(handler)
		if hb == nil {
			continue
		}
		checks = append(checks, server.Check{Name: handler, DependsOn: "redis", Now: hb.ready})
		alive = append(alive, server.Check{Name: handler, Run: func(ctx context.Context) error {
			return hb.alive(func() error { return pingRedis(ctx, client, cfg.Namespace()) })
		}})
	}
	return server.NewHealth(alive...), server.NewHealth(checks...)
}

var replyCode = regexp.MustCompile(`^[A-Z]{1,20}`)

// pingRedis returns nil if Redis answers. Its error quotes only the code of a reply, such as NOAUTH. It asks
// for two keys, because a cluster sends a PING to any node, and refuses scripts while a slot is half moved
// (TRYAGAIN).
func pingRedis(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) error {
	err := client.Exists(ctx, namespace.Changes(), namespace.Results()).Err()
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return fmt.Errorf("refuses: %s", cmp.Or(replyCode.FindString(reply.Error()), "ERR"))
	}
	if err != nil {
		return errors.New("does not answer")
	}
	return nil
}

// checkVolume returns nil if the volume with this id is still mounted at root and writable. It writes nothing.
func checkVolume(root string, id *string) error {
	if id == nil {
		return errors.New("not open yet")
	}
	vol, err := volume.ViewVolume(root)
	switch {
	case errors.Is(err, volume.ErrNoVolume):
		return errors.New("not found at the root: is it mounted?")
	case err != nil:
		return withoutPath(err)
	case vol.ID() != *id:
		return errors.New("not the volume that was mounted at the start")
	}
	return checkWritable(vol.Root())
}

func checkWritable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return withoutPath(err)
	}
	return nil
}

// withoutPath reduces a file system error to its errno.
func withoutPath(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errors.New(errno.Error())
	}
	return errors.New("cannot be read")
}
