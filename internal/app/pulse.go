package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pulse is one handler's sign of life. Its loop beats in each turn, and takes no turn that waits for long, whatever it
// depends on. A nil pulse is nobody's, and may be beaten all the same.
type pulse struct {
	quiet bool // it does not beat, and its silence says nothing

	mu   sync.Mutex
	why  error     // why the handler does not run; nil: it does
	last time.Time // the last beat, or when it was told to run
	hung time.Time // since when it has been silent with nothing to excuse it; zero: it has not
}

const (
	silentFor = time.Minute     // longer than any turn takes, with Redis answering as late as we wait for it
	hungFor   = 2 * time.Minute // silent for so much longer, with Redis answering all the time: it hangs
)

// What a handler does while it does not run.
var (
	errStarting = errors.New("it is starting")
	errAwaiting = errors.New("it waits for Redis")
	errDraining = errors.New("it drains")
	errEnded    = errors.New("it has ended")
)

func newPulse() *pulse { return &pulse{why: errStarting, last: time.Now()} }

// runs says that the handler runs.
func (p *pulse) runs() { p.set(nil) }

// rests says that it does not, and why.
func (p *pulse) rests(why error) { p.set(why) }

func (p *pulse) set(why error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why, p.last, p.hung = why, time.Now(), time.Time{}
}

func (p *pulse) beat() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.hung = time.Now(), time.Time{}
}

// Ready is nil while the handler runs and beats.
func (p *pulse) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch silent := time.Since(p.last); {
	case p.why != nil:
		return p.why
	case silent > silentFor && !p.quiet:
		return fmt.Errorf("it has been silent for %v", silent.Round(time.Second))
	}
	return nil
}

// alive is nil unless the handler hangs. Silence alone does not say so: it is looked at again and again, and Redis is asked
// each time, for a process must not be ended because of what it depends on.
func (p *pulse) alive(answers func() error) error {
	if p.silence() <= silentFor {
		return nil
	}
	err := answers()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil || p.why != nil || time.Since(p.last) <= silentFor:
		p.hung = time.Time{}
	case p.hung.IsZero():
		p.hung = time.Now()
	case time.Since(p.hung) > hungFor:
		return fmt.Errorf("it hangs: it has been silent for %v, and Redis answers", time.Since(p.last).Round(time.Second))
	}
	return nil
}

// silence is for how long a handler that runs has not beaten.
func (p *pulse) silence() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil || p.quiet {
		return 0
	}
	return time.Since(p.last)
}

// beating has fn, which a loop calls in each turn, beat first.
func beating(p *pulse, fn func() int) func() int {
	return func() int {
		p.beat()
		return fn()
	}
}

// pulseHook beats with each command of a client that one loop alone uses.
type pulseHook struct{ *pulse }

func (h pulseHook) DialHook(next redis.DialHook) redis.DialHook {
	return next
}

func (h pulseHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.beat()
		return next(ctx, cmd)
	}
}

func (h pulseHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.beat()
		return next(ctx, cmds)
	}
}
