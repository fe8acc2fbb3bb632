package locking_test

import (
	"log/slog"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func TestOnlyALongWaitIsAWarning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wait   time.Duration
		handed bool // the holder got its lease by message
		warns  bool
	}{
		"a long wait":                     {warns: true},
		"a long wait, a lease by message": {handed: true, warns: true},
		"a short wait":                    {wait: 100 * time.Millisecond},
	} {
		for _, same := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", same process", false: ", another process"}[same], func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				holder := start(t, server, "w1")
				waiter := holder
				if !same {
					waiter = start(t, server, "w2")
				}
				req := locking.Request{Key: "k", Job: "37"}
				if tc.handed {
					helper := start(t, server, "w0")
					awaitSubscription(t, holder, helper)
					before := must(t, helper, "k", "1")
					wait := queueUp(t, holder, t.Context(), req)
					release(t, before)
					soon(t, wait, "the hand-over").ok(t)
				} else if _, err := holder.Acquire(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				debugged := waiter.log.count("waiting for lock")
				wait := tc.wait
				if wait == 0 {
					wait = 2500 * time.Millisecond
				}
				timesOut(t, waiter, locking.Request{Key: "k", Job: "42", Wait: wait})
				if n := waiter.log.count("waiting for lock") - debugged; n != 1 {
					t.Errorf("the wait was logged %d times at level debug; want once", n)
				}
				warned := waiter.log.all("still waiting for lock")
				if !tc.warns {
					if len(warned) > 0 {
						t.Errorf("the wait was logged as %v", warned)
					}
					return
				}
				if len(warned) != 1 || warned[0].level != slog.LevelWarn || warned[0].attrs["key"] != "k" || warned[0].attrs["job"] != "42" ||
					warned[0].attrs["holder_job"] != "37" || warned[0].attrs["holder_worker"] != "w1" {
					t.Fatalf("the wait was logged as %v", warned)
				}
				if waited, err := time.ParseDuration(warned[0].attrs["waited"]); err != nil || waited < time.Second {
					t.Errorf("logged after a wait of %v", warned[0].attrs["waited"])
				}
			})
		}
	}
}
