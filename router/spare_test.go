package router_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/router"
)

// TestSpareSlotIsWantedByMessages takes the only slot for work in the background. A message gets it at once.
func TestSpareSlotIsWantedByMessages(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(2)
	first, second := slots.Spare(), slots.Spare()
	if first == nil || second == nil || slots.Spare() != nil {
		t.Fatal("want two spare slots")
	}
	first.Release()
	working, finish := make(chan struct{}, 2), make(chan struct{})
	handle := slots.Middleware(func(*message.Message) ([]*message.Message, error) {
		working <- struct{}{}
		<-finish
		return nil, nil
	})
	done := make(chan error, 2)
	run := func(id string) { _, err := handle(message.NewMessage(id, nil)); done <- err }
	go run("1")
	within(t, working, "the free slot")
	select {
	case <-second.Wanted():
		t.Error("the slot is wanted, although another was free")
	default:
	}
	go run("2")
	within(t, second.Wanted(), "the message's wish")
	second.Release()
	within(t, working, "the spare slot")
	if slots.Spare() != nil {
		t.Error("a spare slot, although messages use all")
	}
	close(finish)
	for range 2 {
		if err := within(t, done, "the end of the work"); err != nil {
			t.Error(err)
		}
	}
	last := slots.Spare()
	slots.Close()
	within(t, last.Wanted(), "the end of the process")
	last.Release()
	if slots.Spare() != nil {
		t.Error("a spare slot of a process that is stopping")
	}
}
