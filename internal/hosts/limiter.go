package hosts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	silentLimit   = 4                // requests in flight to a host that has not answered lately
	lately        = 30 * time.Second // how long a host counts as one that answers
	firstRequest  = time.Second      // how long a job that was let in keeps a place before its first request
	knownFor      = 10 * time.Minute // how long an answer to a repository counts
	pushesPerPoll = 9
	unlimited     = 1_000_000
)

// Target is a host, in lower case and without the default port, and the name of a credential, "" for none.
type Target struct{ Host, Credential string }

// String returns the target in a form without spaces, for [ParseTarget] and for keys in Redis.
func (t Target) String() string { return url.QueryEscape(t.Host) + ":" + url.QueryEscape(t.Credential) }

// ParseTarget parses [Target.String].
func ParseTarget(text string) (t Target, ok bool) {
	host, credential, ok := strings.Cut(text, ":")
	host, err := url.QueryUnescape(host)
	credential, err2 := url.QueryUnescape(credential)
	return Target{host, credential}, ok && host != "" && err == nil && err2 == nil
}

// Config configures a [Limiter]. Redis and Prefix are required.
type Config struct {
	Redis     redis.Scripter // runs the scripts; never closed
	Prefix    string         // prefix of all keys; on Cluster it must contain a hash tag
	Limit     int            // maximum requests of this process in flight to a host; default 16
	Overrides map[string]int // the same for single hosts
	Window    int            // jobs that the process has in flight, from which the other limits follow; default 1024
	Log       *slog.Logger   // silent by default

	// Observe is called with the outcome of each request, or with the reason why a change must wait elsewhere. Optional.
	Observe func(host string, o Outcome, r Reason)
}

// Limiter limits the requests to hosts. It is safe for concurrent use.
type Limiter struct {
	cfg    Config
	ctx    context.Context // done after Close
	stop   context.CancelCauseFunc
	asleep atomic.Int64 // jobs that wait in this process until they ask Redis again
	away   atomic.Bool  // Redis has failed to answer the last call

	mu     sync.Mutex
	jobs   int
	hosts  map[string]*host
	shared map[Target]shared
}

// host is what this process knows of a host.
type host struct {
	limit    int
	places   []*place             // taken
	queue    []*place             // waited for: those of jobs that hold their lease, then the others, in order
	pushes   int                  // let in since the last poll
	replied  time.Time            // last response, also an error
	good     time.Time            // last response that was neither refusal nor a server error
	failures map[string]bool      // repositories that it failed since
	known    map[string]time.Time // repositories that it has answered, and not failed to since
}

// place is that of a request, or of a job before its first one.
type place struct {
	job    *Job
	target Target
	sent   bool          // of a request, whose job holds its lease
	began  time.Time     // when the request began
	ready  chan struct{} // closed when the place is taken
}

// New returns a Limiter.
func New(cfg Config) (*Limiter, error) {
	if cfg.Redis == nil || cfg.Prefix == "" {
		return nil, errors.New("hosts: Config.Redis and Config.Prefix are required")
	}
	cfg.Limit, cfg.Window = cmp.Or(cfg.Limit, 16), cmp.Or(cfg.Window, 1024)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(string, Outcome, Reason) {}
	}
	ctx, stop := context.WithCancelCause(context.Background())
	return &Limiter{cfg: cfg, ctx: ctx, stop: stop, hosts: map[string]*host{}, shared: map[Target]shared{}}, nil
}

// Close ends the waits of jobs that do not hold their lease.
func (l *Limiter) Close() {
	l.stop(&events.Error{
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy, RetryAfter: events.AtOnce,
		Err: errors.New("this process is stopping"),
	})
}

// Load returns the requests of this process in flight, and its jobs that wait for a place, by host.
func (l *Limiter) Load() (inFlight, waiting map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	inFlight, waiting = map[string]int{}, map[string]int{}
	for name, h := range l.hosts {
		inFlight[name], waiting[name] = len(h.places), len(h.queue)
	}
	return inFlight, waiting
}

// Job returns the requests of one job for a repository. The caller must call [Job.Leave] at its end.
func (l *Limiter) Job(repo string, poll bool) *Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs++; l.jobs%4096 == 0 {
		l.forget(time.Now())
	}
	return &Job{l: l, repo: repo, poll: poll, turns: map[Target]*turn{}}
}

// forget frees the memory of hosts that are not used any more. The caller holds mu, as below.
func (l *Limiter) forget(now time.Time) {
	for name, h := range l.hosts {
		maps.DeleteFunc(h.known, func(_ string, at time.Time) bool { return now.Sub(at) > knownFor })
		if len(h.places)+len(h.queue)+len(h.known) == 0 && !h.answers(now) {
			delete(l.hosts, name)
		}
	}
	maps.DeleteFunc(l.shared, func(_ Target, s shared) bool {
		return s.until.Before(now) && now.Sub(s.learned) > time.Minute
	})
}

func (l *Limiter) hostOf(name string) *host {
	if l.hosts[name] == nil {
		limit := cmp.Or(l.cfg.Overrides[name], l.cfg.Limit)
		l.hosts[name] = &host{limit: limit, failures: map[string]bool{}, known: map[string]time.Time{}}
	}
	return l.hosts[name]
}

// answers reports whether the host has answered lately, or is answering.
func (h *host) answers(now time.Time) bool {
	return now.Sub(h.replied) < lately ||
		slices.ContainsFunc(h.places, func(p *place) bool { return p.job.turn(p.target).answered })
}

// room returns how many more pushes may wait for a host in this process before their lease, so that there is some for
// any host: a half of what is left of a quarter of the window. Polls have half as much. A host is not idle for want of
// room. Hosts that do not answer have a quarter of the window, and another one for the first request to each, since
// nothing is known of a new one.
func (l *Limiter) room(h *host, poll bool) int {
	now, left, here, silent := time.Now(), l.cfg.Window/4, 0, 0
	if poll {
		left /= 2
	}
	for _, other := range l.hosts {
		if busy := len(other.places) + len(other.queue); busy > 0 && !other.answers(now) {
			silent += busy
		}
		for _, p := range other.queue {
			if p.sent || p.job.poll != poll {
				continue
			}
			if left--; other == h {
				here++
			}
		}
	}
	isFull := silent >= l.cfg.Window/2 || silent >= l.cfg.Window/4 && len(h.places) > 0
	switch {
	case isFull && !h.answers(now):
		return 0
	case len(h.queue) == 0 && len(h.places) < silentLimit:
		return unlimited
	}
	return max(0, left/2-here)
}

// enqueue has a place waited for, and gives it if it is free.
func (h *host) enqueue(p *place) {
	p.ready = make(chan struct{})
	i := slices.IndexFunc(h.queue, func(other *place) bool { return p.sent && !other.sent })
	if i < 0 {
		i = len(h.queue)
	}
	h.queue = slices.Insert(h.queue, i, p)
	h.admit()
}

// release ends a place, also one that is still waited for.
func (l *Limiter) release(p *place) {
	h := l.hostOf(p.target.Host)
	isSame := func(other *place) bool { return other == p }
	h.queue, h.places = slices.DeleteFunc(h.queue, isSame), slices.DeleteFunc(h.places, isSame)
	h.admit()
}

// admit gives the free places to those that wait for them.
func (h *host) admit() {
	for i := h.next(); i >= 0; i = h.next() {
		p := h.queue[i]
		h.queue, h.places = slices.Delete(h.queue, i, i+1), append(h.places, p)
		if !p.sent {
			h.pushes++
		}
		if !p.sent && p.job.poll {
			h.pushes = 0
		}
		close(p.ready)
	}
}

// hangs reports whether the host has left a request of a job that it has not answered waiting for a second.
func (h *host) hangs(now time.Time) bool {
	return slices.ContainsFunc(h.places, func(p *place) bool {
		return p.sent && !p.began.IsZero() && now.Sub(p.began) > time.Second && !p.job.turn(p.target).answered
	})
}

// next returns the index of the next in the queue that may have a place, or -1: requests of jobs that hold their lease,
// then pushes, then polls, but every tenth is a poll. A job has at most a quarter of the places, so that one with many
// files does not keep the others out, and polls have half. An eighth, at least one while a request hangs, and all but
// silentLimit while the host does not answer, is left to repositories that it has answered: it may fail for some only,
// and a timeout takes a minute.
func (h *host) next() int {
	if len(h.queue) == 0 || len(h.places) >= h.limit {
		return -1
	}
	now, reserved, other := time.Now(), h.limit/8, -1
	if h.limit > 1 && h.hangs(now) {
		reserved = max(1, reserved)
	}
	open := h.limit - reserved
	if !h.answers(now) {
		open = min(open, silentLimit)
	}
	used, polls := map[*Job]int{}, 0
	for _, p := range h.places {
		used[p.job]++
		if p.job.poll {
			polls++
		}
	}
	for i, p := range h.queue {
		switch {
		case used[p.job] >= max(1, h.limit/4), p.job.poll && polls >= max(1, h.limit/2),
			len(h.places) >= open && now.Sub(h.known[p.job.repo]) > knownFor:
		case p.sent, p.job.poll == (h.pushes >= pushesPerPoll):
			return i
		case other < 0:
			other = i
		}
	}
	return other
}
