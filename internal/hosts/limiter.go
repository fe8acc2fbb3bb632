package hosts

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	silentLimit   = 4                      // requests in flight to a host that has not answered lately
	lately        = 30 * time.Second       // how long a host counts as one that answers
	stuckAfter    = time.Second            // without an answer
	knownFor      = 10 * time.Minute       // how long an answer to a repository counts
	firstRequest  = time.Second            // how long a job that was let in keeps a place before its first request
	retryEvery    = 250 * time.Millisecond // while somebody waits: places become free as time passes
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
	cfg  Config
	id   string
	ctx  context.Context // done after Close
	stop context.CancelCauseFunc

	mu      sync.Mutex
	jobs    uint64
	hosts   map[string]*host
	shared  map[Target]*shared
	waiting map[bool]int // jobs that wait before their lease, by whether they are polls
	timer   *time.Timer  // set while somebody waits
	away    time.Time    // until when Redis is not asked
}

// host is what this process knows of a host.
type host struct {
	limit    int
	places   map[*place]bool
	queue    []*waiter            // requests of jobs that hold their lease, then jobs without it, the oldest first
	pushes   int                  // let in since the last poll
	replied  time.Time            // last response, also an error
	silent   time.Time            // last request without an answer
	good     time.Time            // last response that was neither refusal nor a server error
	failures map[string]bool      // repositories that it failed since
	known    map[string]time.Time // repositories that it has answered, and not failed to since
}

// place is a request in flight, or that of a job which was let in and is to send its first request soon.
type place struct {
	job          *Job
	began        time.Time
	sent, steady bool // steady: the host has answered the job before
}

func (p *place) counts(now time.Time) bool { return p.sent || now.Sub(p.began) < firstRequest }

// waiter waits for a place in this process.
type waiter struct {
	*place
	target Target
	since  time.Time // zero if the job holds its lease
	ready  chan bool // receives true for the place, and false if the target was blocked meanwhile
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
	return &Limiter{cfg: cfg, id: rand.Text()[:8] + ":", ctx: ctx, stop: stop,
		hosts: map[string]*host{}, shared: map[Target]*shared{}, waiting: map[bool]int{}}, nil
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

// IsLimited reports whether this process knows of changes that must wait elsewhere.
func (l *Limiter) IsLimited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.shared {
		if s.isBlocked() || s.allowed > 0 || s.waiting > 0 {
			return true
		}
	}
	return false
}

// Job returns the requests of one job for a repository. The caller must call [Job.Leave] at its end.
func (l *Limiter) Job(repo string, poll bool) *Job {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs++; l.jobs%4096 == 0 {
		now := time.Now()
		for name, h := range l.hosts {
			maps.DeleteFunc(h.known, func(_ string, at time.Time) bool { return now.Sub(at) > knownFor })
			if len(h.places)+len(h.queue)+len(h.known) == 0 && !h.answers(now) {
				delete(l.hosts, name)
			}
		}
		maps.DeleteFunc(l.shared, func(_ Target, s *shared) bool {
			return s.until.Before(now) && now.Sub(s.learned) > time.Minute
		})
	}
	return &Job{l: l, repo: repo, poll: poll, token: l.id + strconv.FormatUint(l.jobs, 36),
		turns: map[Target]*turn{}, silent: map[string]int{}}
}

func (l *Limiter) hostOf(name string) *host {
	if l.hosts[name] == nil {
		limit := cmp.Or(l.cfg.Overrides[name], l.cfg.Limit)
		l.hosts[name] = &host{
			limit: limit, places: map[*place]bool{}, failures: map[string]bool{}, known: map[string]time.Time{},
		}
	}
	return l.hosts[name]
}

// answers reports whether the host has answered lately, or is answering. The caller holds mu, as below.
func (h *host) answers(now time.Time) bool {
	for p := range h.places {
		if p.steady {
			return true
		}
	}
	return now.Sub(h.replied) < lately
}

// hasPlace reports whether another request may be sent to the host: for any repository, or only for one that it has
// answered before. While it does not answer, only those go beyond silentLimit.
func (l *Limiter) hasPlace(h *host, now time.Time) (open, known bool) {
	used := 0
	for p := range h.places {
		if p.counts(now) {
			used++
		}
	}
	if h.answers(now) || used >= h.limit {
		return used < h.limit, used < h.limit
	}
	// Hosts that do not answer have a quarter of the window, and another one for requests that are stuck, so that many of
	// them do not delay a host of which nothing is known yet.
	quarter, fresh, stuck := max(1, l.cfg.Window/4), 0, 0
	for _, other := range l.hosts {
		if other.answers(now) {
			continue
		}
		for p := range other.places {
			if p.sent && now.Sub(p.began) > stuckAfter {
				stuck++
			} else if p.counts(now) {
				fresh++
			}
		}
	}
	known = fresh+max(0, stuck-quarter) < quarter
	return known && used < silentLimit, known
}

// room returns how many more changes may wait for the host in this process: an eighth of the window, and a
// quarter for all hosts together; half of that for polls. If few wait, all others may come, so that the host
// is not idle.
func (l *Limiter) room(h *host, poll bool) int {
	most, all, waiting := max(1, l.cfg.Window/8), max(1, l.cfg.Window/4), 0
	if poll {
		most, all = max(1, most/2), max(1, all/2)
	}
	for _, w := range h.queue {
		if w.job.poll == poll {
			waiting++
		}
	}
	if len(h.queue) == 0 {
		if open, _ := l.hasPlace(h, time.Now()); open {
			return unlimited
		}
	}
	if 4*waiting < most && l.waiting[poll] < all {
		return unlimited
	}
	return max(0, min(most-waiting, all-l.waiting[poll]))
}

// enqueue adds a waiter behind those that wait for as long, and lets it go on if it can.
func (l *Limiter) enqueue(h *host, w *waiter) {
	i := slices.IndexFunc(h.queue, func(other *waiter) bool { return other.since.After(w.since) })
	if i < 0 {
		i = len(h.queue)
	}
	h.queue = slices.Insert(h.queue, i, w)
	if !w.sent {
		l.waiting[w.job.poll]++
	}
	l.admit(h)
}

func (l *Limiter) dequeue(h *host, i int) *waiter {
	w := h.queue[i]
	h.queue = slices.Delete(h.queue, i, i+1)
	if !w.sent {
		l.waiting[w.job.poll]--
	}
	return w
}

// admit gives the free places of a host to its waiters.
func (l *Limiter) admit(h *host) {
	now := time.Now()
	for len(h.queue) > 0 {
		open, known := l.hasPlace(h, now)
		if !known {
			break
		}
		i := h.next(now, open)
		if i < 0 {
			break
		}
		w := l.dequeue(h, i)
		if !w.sent && !w.job.turns[w.target].shared { // the others are counted when they leave
			l.sharedOf(w.target).passed++
		}
		w.began, h.places[w.place] = now, true
		w.ready <- true
	}
	if len(h.queue) == 0 || l.timer != nil {
		return
	}
	l.timer = time.AfterFunc(retryEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.timer = nil
		for _, h := range l.hosts {
			l.admit(h)
		}
	})
}

// next returns the index of the next waiter to go on, or -1: first those with a lease, but a job has at most
// a quarter of the places, so that one with many files does not keep the others out. Then pushes go before
// polls, but for every tenth place; polls have at most half of the places. An eighth is left to repositories that
// it answers, and at least one while it leaves requests without an answer: it may fail for some only, and a timeout
// takes a minute. Others need a place that is open.
func (h *host) next(now time.Time, open bool) int {
	used, polls, free, running, push, poll := map[*Job]int{}, 0, h.limit, -1, -1, -1
	silent := now.Sub(h.silent) < lately
	for p := range h.places {
		used[p.job]++
		if !p.counts(now) {
			continue
		}
		free--
		silent = silent || p.sent && !p.steady && now.Sub(p.began) > stuckAfter
		if p.job.poll {
			polls++
		}
	}
	if free <= 0 {
		return -1
	}
	reserved := h.limit / 8
	if silent && h.limit > 1 {
		reserved = max(1, reserved)
	}
	open = open && free > reserved
	for i, w := range slices.Backward(h.queue) {
		switch {
		case !open && !w.steady && now.Sub(h.known[w.job.repo]) > knownFor:
		case w.sent && used[w.job] < max(1, h.limit/4):
			running = i
		case !w.sent && w.job.poll:
			poll = i
		case !w.sent:
			push = i
		}
	}
	if running >= 0 {
		return running
	}
	if polls >= max(1, h.limit/2) {
		poll = -1
	}
	if push >= 0 && (poll < 0 || h.pushes < pushesPerPoll) {
		h.pushes++
		return push
	}
	if poll >= 0 {
		h.pushes = 0
	}
	return poll
}
