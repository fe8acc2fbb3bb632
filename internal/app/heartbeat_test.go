package app

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSilentHandlerIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHeartbeat()
		if err := p.ready(); !errors.Is(err, errStarting) {
			t.Errorf("before it runs: %v, want errStarting", err)
		}
		p.running()
		time.Sleep(maxSilence)
		if err := p.ready(); err != nil {
			t.Errorf("after %v: %v", maxSilence, err)
		}
		time.Sleep(time.Second)
		if p.ready() == nil {
			t.Error("ready, want an error: it has been silent for longer")
		}
		p.beat()
		if err := p.ready(); err != nil {
			t.Errorf("after a beat: %v", err)
		}
		p.notReady(errDraining)
		if err := p.ready(); !errors.Is(err, errDraining) {
			t.Errorf("while it drains: %v, want errDraining", err)
		}
	})
}

func TestHandlerIsNotAliveOnlyIfItHangsWhileRedisAnswers(t *testing.T) {
	up := func() error { return nil }
	down := func() error { return errors.New("does not answer") }
	// Each case is checked every 10 s for an hour. It must be alive until dies, and dead from then on.
	for name, tc := range map[string]struct {
		redis func(at time.Duration) func() error
		each  func(p *heartbeat, at time.Duration) // runs before each check
		dies  time.Duration                        // 0: never
	}{
		"silent while Redis answers": {
			redis: func(time.Duration) func() error { return up }, dies: maxSilence + hangAfter + 20*time.Second,
		},
		"silent while Redis is unavailable": {redis: func(time.Duration) func() error { return down }},
		"silent while Redis comes and goes": {redis: func(at time.Duration) func() error {
			if at%(2*time.Minute) == 0 {
				return down
			}
			return up
		}},
		"silent since before Redis came back": {
			redis: func(at time.Duration) func() error {
				if at < 30*time.Minute {
					return down
				}
				return up
			},
			dies: 30*time.Minute + hangAfter + 10*time.Second,
		},
		"slow": {
			redis: func(time.Duration) func() error { return up },
			each: func(p *heartbeat, at time.Duration) {
				if at%(2*time.Minute) == 0 {
					p.beat()
				}
			},
		},
		"not running": {
			redis: func(time.Duration) func() error { return up },
			each:  func(p *heartbeat, _ time.Duration) { p.notReady(errDraining) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const interval = 10 * time.Second
				p := newHeartbeat()
				p.running()
				for at := interval; at < time.Hour; at += interval {
					time.Sleep(interval)
					if tc.each != nil {
						tc.each(p, at)
					}
					dead := p.alive(tc.redis(at)) != nil
					if want := tc.dies > 0 && at >= tc.dies; dead != want {
						t.Fatalf("after %v: dead %t, want %t", at, dead, want)
					}
				}
			})
		})
	}
}

func TestProcessIsAliveAfterBeingSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHeartbeat()
		p.running()
		time.Sleep(time.Hour) // as if the machine had been suspended
		for range 3 {
			if err := p.alive(func() error { return nil }); err != nil {
				t.Errorf("right after resuming: %v", err)
			}
			time.Sleep(time.Second)
		}
		p.beat()
		time.Sleep(maxSilence)
		if err := p.alive(func() error { t.Error("Redis was pinged although nothing is wrong"); return nil }); err != nil {
			t.Errorf("after the next beat: %v", err)
		}
	})
}
