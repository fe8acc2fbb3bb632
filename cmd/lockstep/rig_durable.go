package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/bench/lock"
)

// durableRedis is a private redis-server that has on disk what it has acknowledged.
type durableRedis struct {
	privateRedis
	path string
}

func startDurableRedis(ctx context.Context) (*durableRedis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, usageError(errors.New("--faults needs a redis-server in PATH, to restart it"))
	}
	r := &durableRedis{path: path}
	if r.dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
		return nil, err
	}
	// Another process may take a port between our finding it free and redis-server's bind.
	for range 5 {
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			err = fmt.Errorf("find a free port: %w", err)
			break
		}
		r.addr = l.Addr().String()
		_ = l.Close()
		if err = r.launch(ctx); err == nil {
			return r, nil
		}
	}
	_ = os.RemoveAll(r.dir)
	return nil, err
}

// launch starts the server on its port, with what is in its folder.
func (r *durableRedis) launch(ctx context.Context) error {
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		return err
	}
	r.log.Reset()
	r.cmd = exec.CommandContext(ctx, r.path, "--bind", "127.0.0.1", "--port", port, "--dir", r.dir, "--save", "",
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
		r.kill()
		return fmt.Errorf("redis-server does not start: %w\n%s", err, r.log.String())
	}
	return nil
}

// serves returns once the server has read what it had on disk.
func (r *durableRedis) serves(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// restart kills the server, leaves it away for so long, and starts it again, with its data or empty.
// It returns when it did not serve.
func (r *durableRedis) restart(ctx context.Context, empty bool, away time.Duration) (lock.Span, error) {
	var down lock.Span
	var err error
	if down.From, err = monotonic(); err != nil {
		return down, err
	}
	r.kill()
	if empty {
		if err := errors.Join(os.RemoveAll(r.dir), os.Mkdir(r.dir, 0o700)); err != nil {
			return down, err
		}
	}
	if !sleep(ctx, away) {
		return down, context.Cause(ctx)
	}
	if err := r.launch(ctx); err != nil {
		return down, err
	}
	down.To, err = monotonic()
	return down, err
}

func (r *durableRedis) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}
