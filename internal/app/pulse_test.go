package app

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHandlerThatIsSilentIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPulse()
		if err := p.Ready(); !errors.Is(err, errStarting) {
			t.Errorf("before it runs: %v", err)
		}
		p.runs()
		time.Sleep(silentFor)
		if err := p.Ready(); err != nil {
			t.Errorf("after %v: %v", silentFor, err)
		}
		time.Sleep(time.Second)
		if p.Ready() == nil {
			t.Error("it is ready, though it has been silent for so long")
		}
		p.beat()
		if err := p.Ready(); err != nil {
			t.Errorf("after a beat: %v", err)
		}
		p.rests(errDraining)
		if err := p.Ready(); !errors.Is(err, errDraining) {
			t.Errorf("while it drains: %v", err)
		}
	})
}

func TestOnlyWhatHangsByItselfIsNotAlive(t *testing.T) {
	here := func() error { return nil }
	away := func() error { return errors.New("it does not answer") }
	// Each is looked at every 10 s for an hour, and must be found dead, or alive, all the time from some moment on.
	for name, tc := range map[string]struct {
		redis func(at time.Duration) func() error
		each  func(p *pulse, at time.Duration) // done at each look
		dies  time.Duration                    // 0: never
	}{
		"silent, and Redis answers": {
			redis: func(time.Duration) func() error { return here }, dies: silentFor + hungFor + 20*time.Second,
		},
		"silent, and Redis is away": {redis: func(time.Duration) func() error { return away }},
		"silent, and Redis comes and goes": {redis: func(at time.Duration) func() error {
			if at%(2*time.Minute) == 0 {
				return away
			}
			return here
		}},
		"silent since Redis went away, which is back": {
			redis: func(at time.Duration) func() error {
				if at < 30*time.Minute {
					return away
				}
				return here
			},
			dies: 30*time.Minute + hungFor + 10*time.Second,
		},
		"slow": {
			redis: func(time.Duration) func() error { return here },
			each: func(p *pulse, at time.Duration) {
				if at%(2*time.Minute) == 0 {
					p.beat()
				}
			},
		},
		"at rest": {
			redis: func(time.Duration) func() error { return here },
			each:  func(p *pulse, _ time.Duration) { p.rests(errDraining) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const look = 10 * time.Second
				p := newPulse()
				p.runs()
				for at := look; at < time.Hour; at += look {
					time.Sleep(look)
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

func TestAStoppedProcessThatGoesOnIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPulse()
		p.runs()
		time.Sleep(time.Hour) // as when the machine was asleep
		for range 3 {
			if err := p.alive(func() error { return nil }); err != nil {
				t.Errorf("at once: %v", err)
			}
			time.Sleep(time.Second)
		}
		p.beat()
		time.Sleep(silentFor)
		if err := p.alive(func() error { t.Error("Redis is asked, and nothing is amiss"); return nil }); err != nil {
			t.Errorf("once it beats again: %v", err)
		}
	})
}
