package handlers

import (
	"errors"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
)

// TestLimitedSaysWhoseDoingItIs checks the error for each reason why a request may not be sent.
func TestLimitedSaysWhoseDoingItIs(t *testing.T) {
	for reason, want := range map[hosts.Reason]events.Class{
		hosts.NoAnswer: events.ClassNetwork, hosts.RateLimit: events.ClassLimited, hosts.HostLimit: events.ClassLimited,
		hosts.AtLimit: "", hosts.PollLimit: "", hosts.SlowStart: "", hosts.Quota: "", hosts.AtTotal: "",
	} {
		refusal := &hosts.Limited{Host: "git.example.com", Reason: reason, RetryAfter: time.Second}
		err, ok := errors.AsType[*events.Error](limited(refusal))
		if !ok || err.Disposition != events.Contention || err.Class != events.ClassLimited || err.RetryAfter != time.Second || err.Error() != refusal.Error() {
			t.Errorf("%s: %+v", reason, err)
			continue
		}
		fault, ok := errors.AsType[*events.Error](err.Err)
		if ok != (want != "") || ok && (fault.Class != want || fault.Disposition != events.Retryable) {
			t.Errorf("%s: wraps %+v, want class %q", reason, fault, want)
		}
	}
}
