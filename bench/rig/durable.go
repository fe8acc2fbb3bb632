package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// DurableRedis is a private redis-server that has on disk what it has acknowledged.
type DurableRedis struct {
	privateRedis
	path string
}

func StartDurableRedis(ctx context.Context) (*DurableRedis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, term.UsageError(errors.New("--faults needs a redis-server in PATH, to restart it"))
	}
	r := &DurableRedis{path: path}
	if r.Dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
		return nil, err
	}
	// Another process may take a port between our finding it free and redis-server's bind.
	for range 5 {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			err = fmt.Errorf("find a free port: %w", err)
			break
		}
		r.Addr = l.Addr().String()
		_ = l.Close()
		if err = r.launch(ctx); err == nil {
			return r, nil
		}
	}
	_ = os.RemoveAll(r.Dir)
	return nil, err
}

// launch starts the server on its port, with what is in its folder.
func (r *DurableRedis) launch(ctx context.Context) error {
	_, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return err
	}
	r.log.Reset()
	r.cmd = exec.CommandContext(ctx, r.path, "--bind", "127.0.0.1", "--port", port, "--dir", r.Dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always")
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	err = r.await(ctx)
	if err == nil {
		err = r.serves(ctx)
	}
	if err != nil {
		r.Kill()
		return fmt.Errorf("redis-server does not start: %w\n%s", err, r.log.String())
	}
	return nil
}

// serves returns once the server has read what it had on disk.
func (r *DurableRedis) serves(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if !app.Sleep(ctx, 5*time.Millisecond) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Restart kills the server, leaves it away for so long, and starts it again, with its data or empty.
// It returns when it did not serve.
func (r *DurableRedis) Restart(ctx context.Context, empty bool, away time.Duration) (Span, error) {
	var down Span
	var err error
	if down.From, err = Monotonic(); err != nil {
		return down, err
	}
	r.Kill()
	if empty {
		if err := errors.Join(os.RemoveAll(r.Dir), os.Mkdir(r.Dir, 0o700)); err != nil {
			return down, err
		}
	}
	if !app.Sleep(ctx, away) {
		return down, context.Cause(ctx)
	}
	if err := r.launch(ctx); err != nil {
		return down, err
	}
	down.To, err = Monotonic()
	return down, err
}

func (r *DurableRedis) Kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}
