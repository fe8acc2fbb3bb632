package operate

import (
	"testing"
	"time"
)

func TestLostWorkers(t *testing.T) {
	now := time.Now()
	lost := Lost([]Worker{{Name: "a", Live: true, Heard: now}, {Name: "b", Heard: now.Add(-time.Minute)}, {Name: "c", Heard: now.Add(-time.Hour)}})
	if len(lost) != 1 || lost[0].Name != "c" {
		t.Errorf("%+v", lost)
	}
}
