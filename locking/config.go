package locking

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	minLease     = 100 * time.Millisecond
	maxHandover  = 700 * time.Millisecond
	ticketLife   = 10 * time.Second // a waiter that has not asked for so long is dead
	pollEvery    = time.Second
	callTimeout  = 2 * time.Second
	retryPause   = 50 * time.Millisecond
	maxPause     = time.Second
	renewalBatch = 200 // leases in one script call, to keep Redis free for others
)

// Redis is what a Locker asks of a client: scripts and one subscription. Every
// [redis.UniversalClient] does it. The client should not retry by itself (MaxRetries: -1), for that
// only hides from the Locker how long Redis has been away, and should heed deadlines
// (ContextTimeoutEnabled), or a Redis that hangs keeps Acquire for longer than the request's Wait.
type Redis interface {
	redis.Scripter
	Subscriber
}

// Subscriber opens subscriptions.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Config is what New needs. Only Redis is required.
type Config struct {
	Redis  Redis      // for scripts; never closed by the Locker
	PubSub Subscriber // for the one subscription of the Locker; nil means Redis. Never closed

	// Prefix begins every key and channel: the lease of "k" is the hash Prefix+"k", its waiters are
	// in Prefix+"k:queue" and Prefix+"k:waiters". On Cluster it must contain a hash tag. The default
	// is "{lock}:".
	Prefix string

	// Lease is how long a lease outlives its holder, 10 s by default and at least 100 ms. It is
	// renewed every quarter of that. Wait is how long a request waits unless it says otherwise, 60 s
	// by default.
	Lease time.Duration
	Wait  time.Duration

	// Worker names this process to others. The default is made of host name, pid and a random part.
	Worker string

	// Cluster says that Redis is a cluster, where a message's count of listeners covers one node
	// only. It is implied by a *redis.ClusterClient.
	Cluster bool

	Log      *slog.Logger // nil: silent
	Observer Observer     // nil: none
}

func (cfg Config) withDefaults() (Config, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, "{lock}:")
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Wait = cmp.Or(cfg.Wait, time.Minute)
	cfg.Worker = printable(cmp.Or(cfg.Worker, defaultWorker()))
	if _, ok := cfg.Redis.(*redis.ClusterClient); ok {
		cfg.Cluster = true
	}
	if cfg.PubSub == nil {
		cfg.PubSub = cfg.Redis
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	switch {
	case cfg.Redis == nil:
		return cfg, errors.New("locking: Config.Redis is required")
	case cfg.Lease < minLease:
		return cfg, fmt.Errorf("locking: Config.Lease is %v; want at least %v", cfg.Lease, minLease)
	case cfg.Wait < 0:
		return cfg, fmt.Errorf("locking: Config.Wait is %v; want a positive duration", cfg.Wait)
	case cfg.Cluster && !hasHashTag(cfg.Prefix):
		return cfg, fmt.Errorf("locking: Config.Prefix is %q; on Cluster it needs a hash tag, as in %q", cfg.Prefix, "{lock}:")
	}
	return cfg, nil
}

// handover is the length of a lease that was handed to a waiter, until it renews it.
func (cfg Config) handover() time.Duration { return min(cfg.Lease, maxHandover) }

// renewTimeout bounds one renewal, so that a connection that has gone silent leaves time for others.
func (cfg Config) renewTimeout() time.Duration {
	return min(max(cfg.Lease/4, 250*time.Millisecond), callTimeout)
}

func hasHashTag(prefix string) bool {
	_, rest, open := strings.Cut(prefix, "{")
	return open && strings.Index(rest, "}") > 0
}

func defaultWorker() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), randomID(2))
}

func randomID(bytes int) string {
	id := make([]byte, bytes)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}
