package telemetry

import (
	"context"
	"time"

	"lockstep/internal/cache"
	"lockstep/internal/volume"
)

const volumeTTL = 15 * time.Second // of a volume's figures: scrapes must not load a network file system

// VolumeFigures are the size and usage of a volume.
type VolumeFigures struct {
	volume.Space // of the file system
	volume.Total // as of the last garbage collection
}

func (f VolumeFigures) collect(gauge gauge) {
	gauge("lockstep_volume_size_bytes", "Size of the volume's file system.", float64(f.Size))
	gauge("lockstep_volume_free_bytes", "Bytes free on the volume's file system.", float64(f.Free))
	if f.FreeInodes > 0 {
		gauge("lockstep_volume_free_inodes",
			"Inodes free on the volume's file system; absent if the file system does not count them.", float64(f.FreeInodes))
	}
	if f.Collected.IsZero() {
		return
	}
	gauge("lockstep_volume_used_bytes", "Bytes on disk used by all repositories, as of the last garbage collection.",
		float64(f.Bytes))
	gauge("lockstep_volume_adopted_bytes", "Bytes on disk used by adopted clones, as of the last garbage collection.",
		float64(f.Adopted))
	gauge("lockstep_volume_repositories", "Repositories on the volume, as of the last garbage collection.",
		float64(f.Repos))
	gauge("lockstep_volume_trees", "Published and replaced trees on the volume, as of the last garbage collection.",
		float64(f.Trees))
	gauge("lockstep_volume_collected_timestamp_seconds", "Time at which the last garbage collection ended.",
		float64(f.Collected.UnixMilli())/1000)
}

// Volume exports a volume's figures until stop is called. Only one may be registered at a time. Every process
// with the volume exports the same values, so aggregate them with max, not sum.
func (m *Metrics) Volume(read func() (VolumeFigures, error)) (stop func()) {
	figures := cache.Cache[VolumeFigures]{TTL: volumeTTL, Timeout: readTimeout}
	return m.registry.gauges(func(gauge gauge) {
		f, err := figures.Get(context.Background(), func(context.Context) (VolumeFigures, error) { return read() })
		gauge("lockstep_volume_up", "Whether the volume's file system answers.", flag(err == nil))
		if err == nil {
			f.collect(gauge)
		}
	})
}

// Freed counts bytes freed by a garbage collection.
func (m *Metrics) Freed(bytes int64) { m.freed.Add(float64(bytes)) }
