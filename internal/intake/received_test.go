package intake_test

import (
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/intake"
	"lockstep/internal/spool"
)

// Latency is measured from the reception of a delivery, even if it was spooled.
func TestChangeHasTheTimeOfReception(t *testing.T) {
	r := newRig(t, t.TempDir(), spool.Config{})
	r.server.Stop()
	before := time.Now()
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	after := time.Now()
	r.server.Restart()
	r.run(r.in)
	r.awaitIDs(1)
	for _, entry := range r.client.XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		change, err := events.ParseChange([]byte(payload))
		if err == nil && change.ID != "hub/d1/0" { // queued by the watch
			continue
		}
		if err != nil || change.Time.Before(before) || change.Time.After(after) {
			t.Errorf("received at %v, %v; want it between %v and %v", change.Time, err, before, after)
		}
		if change.Time.Sub(before) > after.Sub(change.Time) { // the attempt to reach Redis took longest
			t.Errorf("received %v after its arrival and %v before it was spooled", change.Time.Sub(before), after.Sub(change.Time))
		}
	}
}
