package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// privateRedis is a redis-server on a free port.
type privateRedis struct {
	env             *Env
	path, addr, dir string
	args            []string // added to the command line
	process         *Process
}

const fsyncOff = "off"

// OpenPrivateRedis starts a private redis-server with the persistence of --appendfsync, and with additional arguments.
func (e *Env) OpenPrivateRedis(ctx context.Context, args ...string) (*Redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, term.UsageError(errors.New("there is no redis-server in PATH to start a private one; install it, or use --redis where the benchmark has it"))
	}
	if e.appendFsync != fsyncOff {
		args = append([]string{"--appendonly", "yes", "--appendfsync", e.appendFsync}, args...)
	}
	p := &privateRedis{env: e, path: path, args: args}
	if p.dir, err = os.MkdirTemp(e.Dir, "redis-"); err != nil {
		return nil, err
	}
	for range 5 { // another process may take the port before redis-server binds it
		if p.addr, err = FreeAddress(); err != nil {
			break
		}
		if err = p.launch(ctx); err == nil {
			r, err := e.OpenRedis(ctx, "redis://"+p.addr)
			if err == nil {
				r.private = p
			}
			return r, err
		}
	}
	return nil, err
}

// FreeAddress returns an unused loopback address.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// launch starts the server on its port, with the data in its folder.
func (p *privateRedis) launch(ctx context.Context) error {
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		return err
	}
	args := append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", p.dir, "--save", ""}, p.args...)
	process, err := p.env.StartProcess(ctx, nil, p.path, args...)
	if err != nil {
		return err
	}
	p.process = process
	if err := p.await(ctx); err != nil {
		_ = p.process.Kill()
		return fmt.Errorf("redis-server does not start: %w\n%s", err, p.process.Log())
	}
	return nil
}

// await returns once this server, and no other process on its port, has loaded its data and answers.
func (p *privateRedis) await(ctx context.Context) error {
	r := &Redis{Client: redis.NewClient(&redis.Options{Addr: p.addr, MaxRetries: -1})}
	defer r.Client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch r.Info(ctx, "server")["process_id"] {
		case strconv.Itoa(p.process.Cmd.Process.Pid):
			if r.Client.Ping(ctx).Err() == nil {
				return nil
			}
		case "":
		default:
			return errors.New("another server has its port")
		}
		if !app.Sleep(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// Restart kills the private server, waits, and starts it again, with its data or empty. It returns the time during
// which the server did not answer.
func (r *Redis) Restart(ctx context.Context, empty bool, away time.Duration) (down Span, err error) {
	p := r.private
	down.From = Monotonic()
	_ = p.process.Kill()
	if empty {
		if err := errors.Join(os.RemoveAll(p.dir), os.Mkdir(p.dir, 0o700)); err != nil {
			return down, err
		}
	}
	if !app.Sleep(ctx, away) {
		return down, context.Cause(ctx)
	}
	err = p.launch(ctx)
	down.To = Monotonic()
	return down, err
}
