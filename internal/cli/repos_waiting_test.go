package cli

import (
	"strings"
	"testing"
	"time"
)

func TestOverduePollIsDue(t *testing.T) {
	now := time.Now()
	if got := nextPoll(now.Add(-time.Second), now); got != "due" {
		t.Errorf("%q, want due", got)
	}
	if got := nextPoll(now.Add(time.Hour), now); !strings.Contains(got, "in ") {
		t.Errorf("%q, want the time left", got)
	}
}
