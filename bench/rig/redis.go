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

// OpenRedis connects to the Redis at url until the end of the run, or starts a private one if url is empty.
func (e *Env) OpenRedis(ctx context.Context, url string) (*Redis, error) {
	if url == "" {
		return e.OpenPrivateRedis(ctx)
	}
	server, err := redisx.Parse(url, "")
	if err != nil {
		return nil, term.UsageError(err)
	}
	r := &Redis{Server: server, URL: url, Client: server.Open()}
	e.Cleanup(func() { _ = r.Client.Close() })
	if err := r.Client.Ping(ctx).Err(); err != nil {
		return nil, redisx.Explain(server, err)
	}
	return r, nil
}

// Info returns a section of INFO. Fields that the server does not report are missing.
func (r *Redis) Info(ctx context.Context, section string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(r.Client.Info(ctx, section).Val()) {
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
	entries, err := client.XRange(ctx, namespace.Results(), "("+cmp.Or(from, "0"), "+").Result()
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
