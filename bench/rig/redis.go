package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
)

// Redis is the server that a benchmark measures on.
type Redis struct {
	redisx.Server
	URL    string // with credentials
	Client redis.UniversalClient

	private *privateRedis // nil if the caller named a server
}

// OpenRedis connects to the Redis at url, or starts a private one if url is empty.
func OpenRedis(ctx context.Context, url string) (*Redis, error) {
	if url == "" {
		return openPrivate(ctx, false)
	}
	server, err := redisx.Parse(url, "")
	if err != nil {
		return nil, term.UsageError(err)
	}
	r := &Redis{Server: server, URL: url, Client: server.Open()}
	if err := r.Client.Ping(ctx).Err(); err != nil {
		r.Close()
		return nil, redisx.Explain(server, err)
	}
	return r, nil
}

// OpenDurableRedis starts a private redis-server that writes each command to disk before it answers, and that can be
// restarted.
func OpenDurableRedis(ctx context.Context) (*Redis, error) { return openPrivate(ctx, true) }

func openPrivate(ctx context.Context, durable bool) (*Redis, error) {
	private, err := startPrivateRedis(ctx, durable)
	if err != nil {
		return nil, err
	}
	r, err := OpenRedis(ctx, "redis://"+private.addr)
	if err != nil {
		private.stop()
		return nil, err
	}
	r.private = private
	return r, nil
}

// Close closes the client and stops a private server.
func (r *Redis) Close() {
	_ = r.Client.Close()
	if r.private != nil {
		r.private.stop()
	}
}

// Restart kills the private server, waits, and starts it again, with its data or empty. It returns the time during
// which the server did not answer.
func (r *Redis) Restart(ctx context.Context, empty bool, away time.Duration) (Span, error) {
	return r.private.restart(ctx, empty, away)
}

// Info returns a section of INFO. Fields that the server does not report are missing.
func (r *Redis) Info(ctx context.Context, section string) map[string]string {
	return redisInfo(ctx, r.Client, section)
}

func redisInfo(ctx context.Context, client redis.UniversalClient, section string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(client.Info(ctx, section).Val()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// CPU returns the CPU time that Redis reports in INFO, so it also works for a remote server.
func (r *Redis) CPU(ctx context.Context) (time.Duration, error) {
	info := r.Info(ctx, "cpu")
	user, errUser := strconv.ParseFloat(info["used_cpu_user"], 64)
	sys, errSys := strconv.ParseFloat(info["used_cpu_sys"], 64)
	if err := errors.Join(errUser, errSys); err != nil {
		return 0, fmt.Errorf("redis at %s does not report its processor time: %w", r, err)
	}
	return time.Duration((user + sys) * float64(time.Second)), nil
}

// Machine describes this machine and the Redis server.
func (r *Redis) Machine() Machine {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	m := newMachine()
	m.Redis = cmp.Or(r.Info(ctx, "server")["redis_version"], "unknown")
	return m
}

// NewNamespace returns a namespace that is unique for this run.
func NewNamespace() events.Namespace {
	return events.Namespace("lockstep-bench:{" + uuid.NewString() + "}:")
}

// Clear deletes all keys with a prefix, unless the server is private. It is best effort: each run has another prefix.
func (r *Redis) Clear(ctx context.Context, prefix string) {
	if r.private != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RoundGrace)
	defer cancel()
	keys := r.Client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		_ = r.Client.Unlink(ctx, keys.Val()).Err()
	}
}

// ReadResults reads the results after the entry with ID from; "" reads all of them. It returns the ID of the last entry.
func ReadResults(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, from string) ([]events.Result, string, error) {
	start := "-"
	if from != "" {
		start = "(" + from
	}
	entries, err := client.XRange(ctx, namespace.Results(), start, "+").Result()
	if err != nil {
		return nil, from, err
	}
	results := make([]events.Result, len(entries))
	for i, entry := range entries {
		from = entry.ID
		payload, _ := entry.Values["payload"].(string)
		if results[i], err = events.ParseResult([]byte(payload)); err != nil {
			return nil, from, err
		}
	}
	return results, from, nil
}
