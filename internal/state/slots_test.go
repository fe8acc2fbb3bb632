package state_test

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

// A worker reports its slots while there are fewer than configured, and the report does not appear as work in progress.
func TestLoweredSlotsAreReported(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	store := state.NewStore(client, events.DefaultNamespace)
	reporter := state.NewReporter(client, events.DefaultNamespace, "w1", slog.New(slog.DiscardHandler))
	var slots atomic.Int64
	slots.Store(12)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { reporter.RunSlots(ctx, func() int { return int(slots.Load()) }, 16) })
	defer running.Wait()
	defer cancel()
	await := func(want ...state.LoweredSlots) {
		t.Helper()
		var got []state.LoweredSlots
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			var err error
			if got, err = store.LoweredSlots(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 && len(want) == 0 || reflect.DeepEqual(got, want) {
				return
			}
		}
		t.Fatalf("lowered slots %v, want %v", got, want)
	}
	await(state.LoweredSlots{Worker: "w1", Slots: 12, Of: 16})
	if all, err := store.Activities(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("work in progress %v, %v: want none", all, err)
	}
	slots.Store(16)
	await()
	slots.Store(4)
	await(state.LoweredSlots{Worker: "w1", Slots: 4, Of: 16})
	cancel()
	running.Wait()
	await()
}
