package telemetry_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/internal/telemetry"
)

func TestNotifications(t *testing.T) {
	m := telemetry.New()
	m.Notification("delivered", 3*time.Millisecond)
	m.Notification("failed", time.Second)
	m.Notification("failed", time.Second)
	var err error
	stop := m.Outbox(func() (int64, error) { return 42, err })
	text := scrape(t, m)
	for _, want := range []string{`lockstep_notify_total{result="failed"} 2`, `lockstep_notify_total{result="delivered"} 1`,
		"lockstep_notify_duration_seconds_count 3", "lockstep_notify_outbox_items 42"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing %q", want)
		}
	}
	err = errors.New("away")
	if strings.Contains(scrape(t, m), "\nlockstep_notify_outbox_items") {
		t.Error("an unknown length is exported")
	}
	err = nil
	stop()
	if strings.Contains(scrape(t, m), "\nlockstep_notify_outbox_items") {
		t.Error("the metric is exported after stop")
	}
}
