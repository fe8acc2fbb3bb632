package operate

import (
	"slices"
	"testing"
	"time"
)

func TestLostWorkers(t *testing.T) {
	now := time.Now()
	all := []Worker{{Name: "a", Live: true, Heard: now}, {Name: "b", Heard: now.Add(-time.Minute)}, {Name: "c", Heard: now.Add(-time.Hour)}}
	lost := Lost(slices.Clone(all), 25*time.Second)
	if len(lost) != 1 || lost[0].Name != "c" {
		t.Errorf("%+v", lost)
	}
	if lost := Lost(all, time.Hour); len(lost) != 0 {
		t.Errorf("%+v may drain", lost)
	}
}
