package status

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0s", 0: "0s", 1500 * time.Microsecond: "2ms", 1234 * time.Millisecond: "1.2s", 75 * time.Second: "1m15s",
		3*time.Hour + 4*time.Minute + 5*time.Second: "3h4m", 50 * time.Hour: "2d2h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
}
