package locking

import (
	"cmp"
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
	ticketLife   = 10 * time.Second // a waiter that has not polled for this long counts as dead
	pollEvery    = time.Second
	callTimeout  = 2 * time.Second
	warnAfter    = time.Second // how long a request waits for another job before that is logged as a warning
	retryPause   = 50 * time.Millisecond
	maxPause     = time.Second
	renewalBatch = 200 // maximum leases per script call, which bounds how long it blocks Redis
)

// Config configures a Locker. Only Redis is required.
type Config struct {
	// Redis runs the scripts. The client should not retry by itself (MaxRetries: -1), because retries hide from the
	// Locker how long Redis has been unavailable. It should honour deadlines (ContextTimeoutEnabled), or an unresponsive
	// Redis keeps Acquire waiting longer than Request.Wait. On Cluster it must be a [redis.ClusterClient]: a wrapped one
	// is not recognised. It is never closed by the Locker.
	Redis  redis.UniversalClient
	PubSub redis.UniversalClient // opens the Locker's one subscription; defaults to Redis; never closed by the Locker

	// Prefix is the prefix of every key and channel: the lease of "k" is the hash Prefix+"k", its waiters are in
	// Prefix+"k:queue" and Prefix+"k:waiters". On Cluster it must contain a hash tag. The default is "{lock}:".
	Prefix string

	// Lease is how long a lease outlives a dead holder, default 10 s, at least 100 ms. A lease is
	// renewed every quarter of that. Wait is the default of Request.Wait, 60 s if zero.
	Lease time.Duration
	Wait  time.Duration

	// Worker identifies this process to others. The default consists of host name, pid and a random part.
	Worker string

	Log      *slog.Logger // optional; silent by default
	KeyName  string       // name of the log attribute with the key; defaults to "key"
	Observer Observer     // optional
}

func (cfg Config) withDefaults() (Config, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, "{lock}:")
	cfg.Lease = cmp.Or(cfg.Lease, 10*time.Second)
	cfg.Wait = cmp.Or(cfg.Wait, time.Minute)
	cfg.Worker = printable(cmp.Or(cfg.Worker, defaultWorker()))
	if cfg.PubSub == nil {
		cfg.PubSub = cfg.Redis
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.KeyName = cmp.Or(cfg.KeyName, "key")
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	switch {
	case cfg.Redis == nil:
		return cfg, errors.New("locking: Config.Redis is required")
	case cfg.Lease < minLease:
		return cfg, fmt.Errorf("locking: Config.Lease is %v; want at least %v", cfg.Lease, minLease)
	case cfg.Wait < 0:
		return cfg, fmt.Errorf("locking: Config.Wait is %v; must not be negative", cfg.Wait)
	case cfg.isCluster() && !hasHashTag(cfg.Prefix):
		return cfg, fmt.Errorf("locking: Config.Prefix is %q; on Cluster it needs a hash tag, as in %q", cfg.Prefix,
			"{lock}:")
	}
	return cfg, nil
}

func (cfg Config) isCluster() bool {
	_, ok := cfg.Redis.(*redis.ClusterClient)
	return ok
}

// handover returns the duration of a lease handed to a waiter, before its first renewal.
func (cfg Config) handover() time.Duration { return min(cfg.Lease, maxHandover) }

// renewTimeout returns the timeout of one renewal, short enough to retry after a dead connection.
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

// Observer receives events of requests and leases, for metrics. It must be safe for concurrent use and must not block.
type Observer interface {
	WaitBegan()                                      // a request begins
	WaitEnded(outcome Outcome, waited time.Duration) // a request ends; called once per WaitBegan
	Released(held time.Duration)                     // a lease that was not lost is released
	Lost(held time.Duration, forced bool)            // a lease is lost, by force or to another request
	InDoubt()                                        // a lease could not be renewed in time
}

// Outcome is how a request ended.
type Outcome string

// The outcomes of a request.
const (
	Acquired    Outcome = "acquired"
	TimedOut    Outcome = "timeout"
	Skipped     Outcome = "skipped"
	Cancelled   Outcome = "cancelled"
	Closed      Outcome = "closed"
	Unavailable Outcome = "unavailable"
)

func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Acquired
	case errors.Is(err, ErrTimeout):
		return TimedOut
	case errors.Is(err, ErrHeld):
		return Skipped
	case errors.Is(err, ErrClosed):
		return Closed
	case errors.Is(err, ErrUnavailable):
		return Unavailable
	}
	return Cancelled
}

type noObserver struct{}

func (noObserver) WaitBegan()                       {}
func (noObserver) WaitEnded(Outcome, time.Duration) {}
func (noObserver) Released(time.Duration)           {}
func (noObserver) Lost(time.Duration, bool)         {}
func (noObserver) InDoubt()                         {}
