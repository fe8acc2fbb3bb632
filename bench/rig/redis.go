package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
)

// Redis is the Redis that is measured on.
type Redis struct {
	redisx.Server
	Url     string // with its credentials, as workers are told it
	Client  redis.UniversalClient
	Private *privateRedis // nil when the caller named one
}

// OpenRedis reaches the Redis at url, or starts a private one when that is empty.
func OpenRedis(ctx context.Context, url string) (*Redis, error) {
	if url == "" {
		private, err := startPrivateRedis(ctx)
		if err != nil {
			return nil, err
		}
		b, err := OpenRedis(ctx, "redis://"+private.Addr)
		if err != nil {
			private.stop()
			return nil, err
		}
		b.Private = private
		return b, nil
	}
	server, err := redisx.Parse(url, "")
	if err != nil {
		return nil, term.UsageError(err)
	}
	b := &Redis{Server: server, Url: url, Client: server.Open()}
	if err := b.Client.Ping(ctx).Err(); err != nil {
		b.Close()
		return nil, redisx.Explain(server, err)
	}
	return b, nil
}

// Close ends the private server, if there is one.
func (b *Redis) Close() {
	_ = b.Client.Close()
	if b.Private != nil {
		b.Private.stop()
	}
}

// RedisInfo returns a section of INFO; what a server does not tell is missing.
func RedisInfo(ctx context.Context, client redis.UniversalClient, section string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(client.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// Cpu is the processor time that Redis has used, as its own getrusage says. It works for one on
// another machine too.
func (b *Redis) Cpu(ctx context.Context) (time.Duration, error) {
	info := RedisInfo(ctx, b.Client, "cpu")
	user, errUser := strconv.ParseFloat(info["used_cpu_user"], 64)
	sys, errSys := strconv.ParseFloat(info["used_cpu_sys"], 64)
	if err := errors.Join(errUser, errSys); err != nil {
		return 0, fmt.Errorf("redis at %s does not tell its processor time: %w", b, err)
	}
	return time.Duration((user + sys) * float64(time.Second)), nil
}

// Machine is what the figures depend on.
type Machine struct {
	Redis    string `json:"redis"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func (b *Redis) Machine() Machine {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	version := RedisInfo(ctx, b.Client, "server")["redis_version"]
	if version == "" {
		version = "unknown"
	}
	return Machine{Redis: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
}

func (m Machine) String() string {
	return fmt.Sprintf("Redis %s, %s %s, %d cores", m.Redis, m.Go, m.Platform, m.Cores)
}

// privateRedis is a redis-server of our own, on a free port, that keeps nothing.
type privateRedis struct {
	Addr string
	Dir  string
	cmd  *exec.Cmd
	log  bytes.Buffer // not to be read before the process has ended
}

func startPrivateRedis(ctx context.Context) (*privateRedis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, term.UsageError(errors.New("--redis is required: there is no redis-server in PATH to start a private one"))
	}
	// Another process may take a port between our finding it free and redis-server's bind.
	for range 5 {
		var p *privateRedis
		if p, err = launchPrivateRedis(ctx, path); err == nil {
			return p, nil
		}
	}
	return nil, err
}

func launchPrivateRedis(ctx context.Context, path string) (*privateRedis, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	p := &privateRedis{Addr: l.Addr().String()}
	_ = l.Close()
	if p.Dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(p.Addr)
	p.cmd = exec.CommandContext(ctx, path, "--bind", "127.0.0.1", "--port", port, "--dir", p.Dir, "--save", "", "--appendonly", "no")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		_ = os.RemoveAll(p.Dir)
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	if err := p.await(ctx); err != nil {
		p.stop()
		return nil, fmt.Errorf("redis-server does not start: %w\n%s", err, p.log.String())
	}
	return p, nil
}

// await returns once our server answers: ours, and not a stranger on the port.
func (p *privateRedis) await(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: p.Addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch RedisInfo(ctx, client, "server")["process_id"] {
		case strconv.Itoa(p.cmd.Process.Pid):
			return nil
		case "":
		default:
			return errors.New("another one has its port")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *privateRedis) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	_ = os.RemoveAll(p.Dir)
}
