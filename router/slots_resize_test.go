package router_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/router"
)

// working runs messages through slots. Each works until finish receives from it.
type working struct {
	slots  *router.Slots
	handle message.HandlerFunc
	busy   chan struct{}
	finish chan struct{}
}

func newWorking(slots *router.Slots) *working {
	w := &working{slots: slots, busy: make(chan struct{}, 100), finish: make(chan struct{})}
	w.handle = slots.Middleware(func(*message.Message) ([]*message.Message, error) {
		w.busy <- struct{}{}
		<-w.finish
		return nil, nil
	})
	return w
}

// begin starts n messages.
func (w *working) begin(n int) {
	for i := range n {
		go func() { _, _ = w.handle(message.NewMessage(fmt.Sprint(i), nil)) }()
	}
}

// expect checks how many messages have got a slot since the last call.
func (w *working) expect(t *testing.T, what string, want int) {
	t.Helper()
	synctest.Wait()
	if got := len(w.busy); got != want {
		t.Errorf("%s: %d messages got a slot, want %d", what, got, want)
	}
	for len(w.busy) > 0 {
		<-w.busy
	}
}

func TestResizedSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorking(router.NewSlots(4))
		w.begin(12)
		w.expect(t, "four slots", 4)
		w.slots.Resize(2)
		w.expect(t, "two slots", 0)
		if room := w.slots.Room(); room != 0 {
			t.Errorf("room for %d more messages, want 0: 8 wait", room)
		}
		for range 2 {
			w.finish <- struct{}{}
		}
		w.expect(t, "two of four have ended", 0)
		w.finish <- struct{}{}
		w.expect(t, "another one has ended", 1)
		w.slots.Resize(5)
		w.expect(t, "five slots", 3)
		w.slots.Resize(-1)
		if n := w.slots.Size(); n != 1 {
			t.Errorf("%d slots, want 1 at least", n)
		}
		for range 4 {
			w.finish <- struct{}{}
		}
		w.expect(t, "one of five is left", 0)
		for range 5 {
			w.finish <- struct{}{}
		}
		w.expect(t, "one after the other", 4)
	})
}

// A spare slot is wanted back when there are more in use than slots.
func TestResizeWantsSparesBack(t *testing.T) {
	t.Parallel()
	slots := router.NewSlots(2)
	one, two := slots.Spare(), slots.Spare()
	slots.Resize(2)
	select {
	case <-one.Wanted():
		t.Error("wanted, although there are enough slots")
	default:
	}
	slots.Resize(1)
	within(t, one.Wanted(), "request for the slot")
	one.Release()
	two.Release()
	if slots.Spare() == nil || slots.Spare() != nil {
		t.Error("want one slot")
	}
}
