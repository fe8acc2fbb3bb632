package main

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

	"lockstep/internal/redisx"
)

// benchRedis is the Redis that is measured on.
type benchRedis struct {
	redisx.Server
	url     string // with its credentials, as workers are told it
	client  redis.UniversalClient
	private *privateRedis // nil when the caller named one
}

// openBenchRedis reaches the Redis at url, or starts a private one when that is empty.
func openBenchRedis(ctx context.Context, url string) (*benchRedis, error) {
	if url == "" {
		private, err := startPrivateRedis(ctx)
		if err != nil {
			return nil, err
		}
		b, err := openBenchRedis(ctx, "redis://"+private.addr)
		if err != nil {
			private.stop()
			return nil, err
		}
		b.private = private
		return b, nil
	}
	server, err := redisx.Parse(url, "")
	if err != nil {
		return nil, usageError(err)
	}
	b := &benchRedis{Server: server, url: url, client: server.Open()}
	if err := b.client.Ping(ctx).Err(); err != nil {
		b.Close()
		return nil, redisx.Explain(server, err)
	}
	return b, nil
}

// Close ends the private server, if there is one.
func (b *benchRedis) Close() {
	_ = b.client.Close()
	if b.private != nil {
		b.private.stop()
	}
}

// redisInfo returns a section of INFO; what a server does not tell is missing.
func redisInfo(ctx context.Context, client redis.UniversalClient, section string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(client.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// cpu is the processor time that Redis has used, as its own getrusage says. It works for one on
// another machine too.
func (b *benchRedis) cpu(ctx context.Context) (time.Duration, error) {
	info := redisInfo(ctx, b.client, "cpu")
	user, errUser := strconv.ParseFloat(info["used_cpu_user"], 64)
	sys, errSys := strconv.ParseFloat(info["used_cpu_sys"], 64)
	if err := errors.Join(errUser, errSys); err != nil {
		return 0, fmt.Errorf("redis at %s does not tell its processor time: %w", b, err)
	}
	return time.Duration((user + sys) * float64(time.Second)), nil
}

// benchMachine is what the figures depend on.
type benchMachine struct {
	Redis    string `json:"redis"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func (b *benchRedis) machine() benchMachine {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	version := redisInfo(ctx, b.client, "server")["redis_version"]
	if version == "" {
		version = "unknown"
	}
	return benchMachine{Redis: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
}

func (m benchMachine) String() string {
	return fmt.Sprintf("Redis %s, %s %s, %d cores", m.Redis, m.Go, m.Platform, m.Cores)
}

// privateRedis is a redis-server of our own, on a free port, that keeps nothing.
type privateRedis struct {
	addr string
	dir  string
	cmd  *exec.Cmd
	log  bytes.Buffer // not to be read before the process has ended
}

func startPrivateRedis(ctx context.Context) (*privateRedis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, usageError(errors.New("--redis is required: there is no redis-server in PATH to start a private one"))
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
	p := &privateRedis{addr: l.Addr().String()}
	_ = l.Close()
	if p.dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(p.addr)
	p.cmd = exec.CommandContext(ctx, path, "--bind", "127.0.0.1", "--port", port, "--dir", p.dir, "--save", "", "--appendonly", "no")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		_ = os.RemoveAll(p.dir)
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
	client := redis.NewClient(&redis.Options{Addr: p.addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch redisInfo(ctx, client, "server")["process_id"] {
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
	_ = os.RemoveAll(p.dir)
}
