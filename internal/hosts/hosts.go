package hosts

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	defaultLimit = 16
	defaultTotal = 256
	lease        = 20 * time.Second // how long a permit outlives its process
	renewEvery   = lease / 4
	keepFor      = time.Minute // how long a permit is kept after Answer.More, if the job does not leave
	callTimeout  = 2 * time.Second
	awayFor      = time.Second     // pause between calls while Redis is away
	reservedFor  = 5 * time.Second // as in host.lua
)

// Kind is why a request is sent. It decides who goes first.
type Kind string

// The kinds, in the order in which they are served.
const (
	Push  Kind = "push"
	Retry Kind = "retry"
	Poll  Kind = "poll"
)

// Reason is why a request must wait.
type Reason string

// The reasons.
const (
	AtLimit   Reason = "limit"           // the host has as many requests in flight as it may have
	PollLimit Reason = "polls"           // polls have their half of the permits
	SlowStart Reason = "slow start"      // the host has limited the credential recently
	Quota     Reason = "quota"           // the rest of the credential's quota is spread over the time until its reset
	RateLimit Reason = "rate limit"      // the host limits the credential
	HostLimit Reason = "host rate limit" // the host limits several credentials
	NoAnswer  Reason = "no answer"       // the host does not answer; its circuit is open
	AtTotal   Reason = "total"           // this process has too many requests in flight
)

// Request names who wants to send a request.
type Request struct {
	Host       string // as in the URL: lower case, without the default port
	Credential string // name of the credential, "" for anonymous requests
	Repo       events.RepoPath
	Kind       Kind
	Optional   bool // refuse the request instead of queueing it; the job continues without it
}

// Waiter is a repository that waits for a permit, with the credential of the requests.
type Waiter struct {
	Credential string
	Key        string // [events.RepoPath.Key] of the repository
}

// Limits overrides the defaults for one host.
type Limits struct {
	Permits int // initial and maximum number of permits over all processes
}

// Observer receives events for metrics. It must be safe for concurrent use and must not block.
type Observer interface {
	Granted(host string)
	Refused(host string, reason Reason)
	Answered(host string, outcome Outcome)
}

// Config configures Budgets. Redis, Prefix and Process are required.
type Config struct {
	Redis     redis.Scripter    // runs the scripts; never closed
	Prefix    string            // prefix of all keys; on Cluster it must contain a hash tag
	Process   string            // name of this process, different from the others'
	Limit     int               // initial and maximum number of permits per host over all processes; default 16
	Total     int               // maximum number of requests of this process over all hosts, besides stuck ones; default 256
	Overrides map[string]Limits // by host; optional

	// Wake makes parked changes of each waiter due, and reports for each whether there were some; nil stands for all. There
	// may be none because they are in flight again or settled, or because they are still on their way back to the stream. So
	// Run gives such a permit to the next waiter, but repeats the call for some seconds. After an error it repeats the
	// whole call.
	Wake func(ctx context.Context, waiters []Waiter) (woken []bool, err error)

	Log      *slog.Logger // optional; silent by default
	Observer Observer     // optional
}

// Budgets grants permits for requests to remote hosts. It is safe for concurrent use.
type Budgets struct {
	cfg    Config
	offset atomic.Int64 // added to both clocks, ms; only tests set it
	kick   chan struct{}

	mu        sync.Mutex
	hosts     map[string]*hostState
	kept      map[string][]*Permit // between two requests of a job, by key of the repository
	permits   map[*Permit]struct{} // in use or kept, or requested
	asking    int                  // requested permits
	lost      []*Permit            // see lose
	processes int
	awayUntil time.Time
	woken     []woken                   // for Config.Wake
	queue     map[place]map[string]Kind // see noteLocked
	waiting   bool                      // a request was refused since the last claim
	lastToken uint64

	tokenPrefix string // unique, even if a process starts again with the same name
}

// New returns Budgets without permits in use. [Budgets.Run] must run for waiting repositories to be woken.
func New(cfg Config) (*Budgets, error) {
	cfg.Limit = cmp.Or(cfg.Limit, defaultLimit)
	cfg.Total = cmp.Or(cfg.Total, defaultTotal)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	if cfg.Wake == nil {
		cfg.Wake = func(context.Context, []Waiter) ([]bool, error) { return nil, nil }
	}
	switch {
	case cfg.Redis == nil:
		return nil, errors.New("hosts: Config.Redis is required")
	case cfg.Prefix == "":
		return nil, errors.New("hosts: Config.Prefix is required")
	case cfg.Process == "":
		return nil, errors.New("hosts: Config.Process is required")
	case cfg.Limit < 1 || cfg.Total < 4:
		return nil, fmt.Errorf("hosts: Config.Limit is %d and Config.Total is %d; want at least 1 and 4", cfg.Limit, cfg.Total)
	}
	for host, limits := range cfg.Overrides {
		if limits.Permits < 1 {
			return nil, fmt.Errorf("hosts: Config.Overrides[%q].Permits is %d; want at least 1", host, limits.Permits)
		}
	}
	return &Budgets{
		cfg: cfg, kick: make(chan struct{}, 1), processes: 1, tokenPrefix: cfg.Process + ":" + rand.Text()[:8] + ":",
		hosts: map[string]*hostState{}, kept: map[string][]*Permit{}, permits: map[*Permit]struct{}{}, queue: map[place]map[string]Kind{},
	}, nil
}

// maximum returns the configured number of permits of a host.
func (b *Budgets) maximum(host string) int {
	if limits, ok := b.cfg.Overrides[host]; ok {
		return limits.Permits
	}
	return b.cfg.Limit
}

func (b *Budgets) now() time.Time {
	return time.Now().Add(time.Duration(b.offset.Load()) * time.Millisecond)
}

// signal makes Run wake repositories, or look for waiters, without waiting for its timer.
func (b *Budgets) signal() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

type noObserver struct{}

func (noObserver) Granted(string)           {}
func (noObserver) Refused(string, Reason)   {}
func (noObserver) Answered(string, Outcome) {}
