package router_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/router"
)

func TestCloseSlotsReturnsWaitersAndLetsWorkFinish(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	working, finish := make(chan struct{}), make(chan struct{})
	handle := slots.Middleware(func(*message.Message) ([]*message.Message, error) {
		close(working)
		<-finish
		return nil, nil
	})
	works, waits := make(chan error, 1), make(chan error, 1)
	go func() { _, err := handle(message.NewMessage("1", nil)); works <- err }()
	within(t, working, "work")
	go func() { _, err := handle(message.NewMessage("2", nil)); waits <- err }()
	slots.Close()
	slots.Close() // idempotent
	err := within(t, waits, "end of the wait")
	if events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassShutdown {
		t.Errorf("waiting message: %v, want it returned", err)
	}
	close(finish)
	if err := within(t, works, "end of the work"); err != nil {
		t.Errorf("working message: %v", err)
	}
}

func TestZeroSlotsMeansOne(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	msg := message.NewMessage("1", nil)
	msg.SetContext(ctx)
	handle := router.NewSlots(0).Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	if _, err := handle(msg); err != nil {
		t.Error(err)
	}
}

func TestSlotWaitEndsWithMessageContext(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(1)
	working, finish := make(chan struct{}), make(chan struct{})
	defer close(finish)
	handle := slots.Middleware(func(*message.Message) ([]*message.Message, error) {
		close(working)
		<-finish
		return nil, nil
	})
	go func() { _, _ = handle(message.NewMessage("1", nil)) }()
	within(t, working, "work")
	ctx, cancel := context.WithCancel(context.Background())
	msg := message.NewMessage("2", nil)
	msg.SetContext(ctx)
	cancel()
	if _, err := handle(msg); err == nil {
		t.Error("a message whose context has ended was let through")
	}
}

func TestRoomCountsSlotWaiters(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(2)
	defer slots.Close()
	working, end := make(chan struct{}), make(chan struct{})
	handle := slots.Middleware(func(*message.Message) ([]*message.Message, error) {
		working <- struct{}{}
		<-end
		return nil, nil
	})
	idle := slots.Room()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { _, _ = handle(message.NewMessage("", nil)) })
	}
	<-working
	<-working
	for slots.Room() != idle-3 {
		runtime.Gosched()
	}
	close(end)
	for range 3 {
		<-working
	}
	all.Wait()
	if idle < 2 || slots.Room() != idle {
		t.Errorf("room %d before, %d after", idle, slots.Room())
	}
}
