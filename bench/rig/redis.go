package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
)

// Redis is a private redis-server on a free port, which a benchmark measures on.
type Redis struct {
	redisx.Server
	URL    string
	Client redis.UniversalClient

	env             *Env
	path, addr, dir string
	args            []string // added to the command line
	process         *Process
}

const fsyncOff = "off"

// OpenRedis starts a redis-server with the persistence of --appendfsync and with additional arguments. It runs until the end of the run.
func (e *Env) OpenRedis(ctx context.Context, args ...string) (*Redis, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, term.UsageError(errors.New("there is no redis-server in PATH; install it"))
	}
	if e.appendFsync != fsyncOff {
		args = append([]string{"--appendonly", "yes", "--appendfsync", e.appendFsync}, args...)
	}
	r := &Redis{env: e, path: path, args: args}
	if r.dir, err = os.MkdirTemp(e.Dir, "redis-"); err != nil {
		return nil, err
	}
	for range 5 { // another process may take the port before redis-server binds it
		if r.addr, err = freeAddress(); err != nil {
			return nil, err
		}
		if err = r.launch(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	r.URL = "redis://" + r.addr
	if r.Server, err = redisx.Parse(r.URL, nil); err != nil {
		return nil, err
	}
	r.Client = r.Open()
	e.Cleanup(func() { _ = r.Client.Close() })
	return r, nil
}

// freeAddress returns an unused loopback address.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// launch starts the server on its port, with the data in its folder.
func (r *Redis) launch(ctx context.Context) error {
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		return err
	}
	args := append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", r.dir, "--save", ""}, r.args...)
	process, err := r.env.StartProcess(ctx, nil, r.path, args...)
	if err != nil {
		return err
	}
	r.process = process
	if err := r.await(ctx); err != nil {
		_ = r.process.Kill()
		return fmt.Errorf("redis-server does not start: %w\n%s", err, r.process.Log())
	}
	return nil
}

// await returns once this server, and no other process on its port, has loaded its data and answers.
func (r *Redis) await(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch info(ctx, client, "server")["process_id"] {
		case strconv.Itoa(r.process.Cmd.Process.Pid):
			if client.Ping(ctx).Err() == nil {
				return nil
			}
		case "":
		default:
			return errors.New("another server has its port")
		}
		if !redisx.Pause(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// Restart kills the server, waits, and starts it again, with its data or empty. It returns the time during
// which the server did not answer.
func (r *Redis) Restart(ctx context.Context, empty bool, away time.Duration) (down Span, err error) {
	down.From = Monotonic()
	_ = r.process.Kill()
	if empty {
		if err := errors.Join(os.RemoveAll(r.dir), os.Mkdir(r.dir, 0o700)); err != nil {
			return down, err
		}
	}
	if !redisx.Pause(ctx, away) {
		return down, context.Cause(ctx)
	}
	err = r.launch(ctx)
	down.To = Monotonic()
	return down, err
}

// info returns a section of INFO. Fields that the server does not report are missing.
func info(ctx context.Context, client redis.UniversalClient, section string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(client.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// CPU returns the CPU time that Redis reports in INFO.
func (r *Redis) CPU(ctx context.Context) (time.Duration, error) {
	fields := info(ctx, r.Client, "cpu")
	user, errUser := strconv.ParseFloat(fields["used_cpu_user"], 64)
	sys, errSys := strconv.ParseFloat(fields["used_cpu_sys"], 64)
	if err := errors.Join(errUser, errSys); err != nil {
		return 0, fmt.Errorf("redis at %s does not report its processor time: %w", r, err)
	}
	return time.Duration((user + sys) * float64(time.Second)), nil
}

// NewNamespace returns a namespace that is unique for this run.
func NewNamespace() events.Namespace {
	return events.Namespace("lockstep-bench:{" + uuid.NewString() + "}:")
}
