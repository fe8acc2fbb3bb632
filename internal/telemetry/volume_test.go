package telemetry_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
)

func TestVolumeFigures(t *testing.T) {
	m := telemetry.New()
	for name, tc := range map[string]struct {
		figures telemetry.VolumeFigures
		err     error
		want    []string
		not     []string
	}{
		"collected": {
			figures: telemetry.VolumeFigures{
				Space: volume.Space{Size: 9, Free: 8, FreeInodes: 7},
				Total: volume.Total{Repos: 6, Trees: 5, Bytes: 4, Adopted: 3, Collected: time.Unix(2, 5e8)},
			},
			want: []string{"lockstep_volume_up 1", "size_bytes 9", "free_bytes 8", "free_inodes 7", "repositories 6", "trees 5",
				"used_bytes 4", "adopted_bytes 3", "collected_timestamp_seconds 2.5"},
		},
		"not yet collected": {
			figures: telemetry.VolumeFigures{Space: volume.Space{Size: 9, Free: 8}},
			want:    []string{"lockstep_volume_up 1", "free_bytes 8"}, not: []string{"lockstep_volume_used_bytes ", "lockstep_volume_free_inodes "},
		},
		"no answer": {err: errors.New("stale handle"), want: []string{"lockstep_volume_up 0"}, not: []string{"lockstep_volume_free_bytes "}},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			stop := m.Volume(func() (telemetry.VolumeFigures, error) { reads++; return tc.figures, tc.err })
			scrape(t, m)
			text := scrape(t, m)
			for _, want := range tc.want {
				if !strings.Contains(text, want+"\n") {
					t.Errorf("missing %q", want)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(text, "\n"+not) {
					t.Errorf("unexpected %q", not)
				}
			}
			if reads != 1 {
				t.Errorf("read %d times, want once", reads)
			}
			stop()
			if strings.Contains(scrape(t, m), "lockstep_volume_up") {
				t.Error("the metrics are exported after stop")
			}
		})
	}
	m.Freed(42)
	if !strings.Contains(scrape(t, m), "lockstep_gc_freed_bytes_total 42\n") {
		t.Error("freed bytes are not counted")
	}
}
