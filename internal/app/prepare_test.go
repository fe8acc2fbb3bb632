package app

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/volume"
	"lockstep/locking"
	"lockstep/router"
)

// TestPreparationGivesItsSlotBackWhileRedisIsAway wants the slot of a preparation that asks Redis for its lease.
func TestPreparationGivesItsSlotBackWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v, err := volume.OpenVolume(t.TempDir(), volume.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	locker, err := locking.New(locking.Config{Redis: client, PubSub: client, Prefix: "lock:", Worker: "w", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	p := newPreparer(slog.New(slog.DiscardHandler))
	p.volume, p.locker, p.slots = v, locker, router.NewSlots(1)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	ref, err := events.ParseRef("refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.prepare(t.Context(), repo, ref) }()
	proctest.Eventually(t, func() bool {
		spare := p.slots.Spare()
		if spare != nil {
			spare.Release()
		}
		return spare == nil || len(done) > 0
	}, "the preparation has the slot")
	p.slots.Close() // wants the slot, as a message does
	select {
	case err := <-done:
		if !errors.Is(err, errWanted) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the preparation keeps its slot")
	}
}
