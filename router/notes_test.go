package router_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
	"lockstep/router"
)

// TestWaitForALeaseIsNotedOnlyWhenGivenUp compares it with an error of the handler that has the same class.
func TestWaitForALeaseIsNotedOnlyWhenGivenUp(t *testing.T) {
	t.Parallel()
	changes := router.Changes{Log: quiet(), Notes: func(_ events.Change, result events.Result, _ int) *stream.Notes {
		return &stream.Notes{Add: stream.Note{Text: string(result.Class)}}
	}}
	lease := &events.Error{Disposition: events.Contention, Class: events.ClassBusy, Err: locking.ErrTimeout}
	pinned := events.Errorf(events.Contention, events.ClassBusy, "readers have 1 of its trees pinned")
	for name, tc := range map[string]struct {
		err   error
		final bool
		want  bool
	}{
		"waits for the lease":     {lease, false, false},
		"given up without it":     {lease, true, true},
		"another error, retried":  {pinned, false, true},
		"another error, given up": {pinned, true, true},
	} {
		msg := message.NewMessage("m1", changeOf(t, "c1", "acme/widgets"))
		if notes := changes.Note(msg, tc.err, 1, tc.final); (notes != nil) != tc.want {
			t.Errorf("%s: noted %v, want %v", name, notes, tc.want)
		}
	}
}
