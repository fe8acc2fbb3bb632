package rig

import (
	"bytes"
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
	path, addr, dir string
	durable         bool
	cmd             *exec.Cmd
	log             bytes.Buffer // complete once the process has ended
}

func startPrivateRedis(ctx context.Context, durable bool) (*privateRedis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, term.UsageError(errors.New("there is no redis-server in PATH to start a private one; install it, or use --redis where the benchmark has it"))
	}
	p := &privateRedis{path: path, durable: durable}
	if p.dir, err = os.MkdirTemp("", "lockstep-bench-redis-"); err != nil {
		return nil, err
	}
	for range 5 { // another process may take the port before redis-server binds it
		if p.addr, err = FreeAddress(); err != nil {
			break
		}
		if err = p.launch(ctx); err == nil {
			return p, nil
		}
	}
	_ = os.RemoveAll(p.dir)
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
	args := []string{"--bind", "127.0.0.1", "--port", port, "--dir", p.dir, "--save", "", "--appendonly", "no"}
	if p.durable {
		args = append(args[:len(args)-1], "yes", "--appendfsync", "always")
	}
	p.log.Reset()
	p.cmd = exec.CommandContext(ctx, p.path, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	if err := p.await(ctx); err != nil {
		p.kill()
		return fmt.Errorf("redis-server does not start: %w\n%s", err, p.log.String())
	}
	return nil
}

// await returns once this server, and no other process on its port, has loaded its data and answers.
func (p *privateRedis) await(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: p.addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch redisInfo(ctx, client, "server")["process_id"] {
		case strconv.Itoa(p.cmd.Process.Pid):
			if client.Ping(ctx).Err() == nil {
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

func (p *privateRedis) restart(ctx context.Context, empty bool, away time.Duration) (down Span, err error) {
	if down.From, err = Monotonic(); err != nil {
		return down, err
	}
	p.kill()
	if empty {
		if err := errors.Join(os.RemoveAll(p.dir), os.Mkdir(p.dir, 0o700)); err != nil {
			return down, err
		}
	}
	if !app.Sleep(ctx, away) {
		return down, context.Cause(ctx)
	}
	if err := p.launch(ctx); err != nil {
		return down, err
	}
	down.To, err = Monotonic()
	return down, err
}

func (p *privateRedis) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *privateRedis) stop() {
	p.kill()
	_ = os.RemoveAll(p.dir)
}
