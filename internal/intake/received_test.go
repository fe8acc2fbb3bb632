package intake_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/intake"
)

// Latency is measured from the reception of a delivery, even if it was spooled.
func TestChangeHasTheTimeOfReception(t *testing.T) {
	r := newRig(t, t.TempDir(), 1<<30)
	r.server.Stop()
	before, after := map[string]time.Time{}, map[string]time.Time{}
	for n := range 10 {
		id := fmt.Sprintf("d%d", n)
		before[id] = time.Now()
		r.must(push(t, id, "acme/widgets"), intake.Spooled)
		after[id] = time.Now()
	}
	r.server.Restart()
	r.run(r.in)
	r.awaitIDs(len(before))
	atOnce := 0
	for _, entry := range r.client.XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		change, err := events.ParseChange([]byte(payload))
		id := strings.TrimSuffix(strings.TrimPrefix(change.ID, "hub/"), "/0")
		if err == nil && before[id].IsZero() { // queued by the watch
			continue
		}
		if err != nil || change.Time.Before(before[id]) || change.Time.After(after[id]) {
			t.Errorf("received at %v, %v; want it between %v and %v", change.Time, err, before[id], after[id])
		}
		if change.Time.Sub(before[id]) < after[id].Sub(change.Time) { // the attempt to reach Redis took longest
			atOnce++
		}
	}
	if atOnce == 0 { // the machine may be slow temporarily
		t.Error("each was received nearer to the moment at which it was spooled than to its arrival")
	}
}
