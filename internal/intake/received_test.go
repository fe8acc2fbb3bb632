package intake_test

import (
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/intake"
	"lockstep/internal/spool"
)

// TestAChangeSaysWhenItsDeliveryWasReceived, however long that waited on disk: latency is measured from there.
func TestAChangeSaysWhenItsDeliveryWasReceived(t *testing.T) {
	r := newRig(t, t.TempDir(), spool.Config{})
	r.server.Stop()
	before := time.Now()
	r.must(push(t, "d1", "acme/widgets"), intake.Spooled)
	after := time.Now()
	r.server.Restart()
	r.run(r.in)
	r.awaitAsked(1)
	for _, entry := range r.client.XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		change, err := events.ParseChange([]byte(payload))
		if err == nil && change.ID != "hub/d1/0" { // the watch's own
			continue
		}
		if err != nil || change.Time.Before(before) || change.Time.After(after) {
			t.Errorf("received at %v, %v; want it between %v and %v", change.Time, err, before, after)
		}
		if change.Time.Sub(before) > after.Sub(change.Time) { // what took long was to find out that Redis is away
			t.Errorf("received %v after it came, and %v before it was on disk", change.Time.Sub(before), after.Sub(change.Time))
		}
	}
}
