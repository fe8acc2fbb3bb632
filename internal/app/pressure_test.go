package app

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/config"
	"lockstep/internal/pressure"
	"lockstep/router"
)

func TestSlotsAdaptToPressure(t *testing.T) {
	for name, tc := range map[string]struct{ least, most, want int }{
		"by default they do not": {0, 8, 8},
		"to the minimum":         {3, 8, 3},
		"no less than slots":     {8, 8, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var background sync.WaitGroup
				slots := router.NewSlots(tc.most)
				reported := make(chan int, 1)
				var free atomic.Bool
				read := func() (pressure.Reading, error) {
					if free.Load() {
						return pressure.Reading{Memory: 0.1}, nil
					}
					return pressure.Reading{Memory: 1}, nil
				}
				cfg := Config{Config: config.Config{Slots: tc.most, SlotsMin: tc.least}}
				adaptSlots(ctx, &background, cfg, slots, read, slog.New(slog.DiscardHandler), func(_ context.Context, slots func() int, configured int) { reported <- configured })
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := slots.Size(); n != tc.want {
					t.Errorf("%d slots after a minute without memory, want %d", n, tc.want)
				}
				free.Store(true)
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := slots.Size(); n != tc.most {
					t.Errorf("%d slots after a minute with memory, want %d", n, tc.most)
				}
				cancel()
				background.Wait()
				if adaptive := tc.want < tc.most; adaptive != (len(reported) == 1) || adaptive && <-reported != tc.most {
					t.Errorf("slots are adaptive: %t, and reported, of another number: %t", adaptive, len(reported) == 1)
				}
			})
		})
	}
}
