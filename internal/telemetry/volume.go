package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// VolumeFigures are what a volume has and takes.
type VolumeFigures struct {
	Size, Free, FreeInodes int64 // of its file system

	Repos, Trees   int   // as of the last patrol, as all that follows
	Bytes, Adopted int64 // that repositories take; that adopted clones take beside them
	Patrolled      time.Time
}

// volumeFresh is how long figures of the volume are good for: a file system over a network is not asked
// for each scrape.
const volumeFresh = 15 * time.Second

// volume reads a volume's figures when they are asked for. Each process that has the volume exports the
// same ones; take the max of them, not the sum.
type volume struct {
	read func() (VolumeFigures, error)

	mu    sync.Mutex
	until time.Time
	last  VolumeFigures
	err   error
}

var (
	volumeUp        = prometheus.NewDesc("lockstep_volume_up", "Whether the volume's file system answers.", nil, nil)
	volumeSize      = prometheus.NewDesc("lockstep_volume_size_bytes", "Size of the volume's file system.", nil, nil)
	volumeFree      = prometheus.NewDesc("lockstep_volume_free_bytes", "Bytes free on the volume's file system.", nil, nil)
	volumeInodes    = prometheus.NewDesc("lockstep_volume_free_inodes", "Inodes free on the volume's file system; absent where it does not count them.", nil, nil)
	volumeUsed      = prometheus.NewDesc("lockstep_volume_used_bytes", "Bytes on disk that all repositories take, as of the last patrol.", nil, nil)
	volumeAdopted   = prometheus.NewDesc("lockstep_volume_adopted_bytes", "Bytes on disk in adopted clones, as of the last patrol.", nil, nil)
	volumeRepos     = prometheus.NewDesc("lockstep_volume_repositories", "Repositories on the volume, as of the last patrol.", nil, nil)
	volumeTrees     = prometheus.NewDesc("lockstep_volume_trees", "Trees on the volume, published and replaced ones, as of the last patrol.", nil, nil)
	volumePatrolled = prometheus.NewDesc("lockstep_volume_patrolled_timestamp_seconds", "When the last patrol ended.", nil, nil)
)

// Describe is part of [prometheus.Collector].
func (v *volume) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		volumeUp, volumeSize, volumeFree, volumeInodes, volumeUsed, volumeAdopted, volumeRepos, volumeTrees, volumePatrolled,
	} {
		to <- desc
	}
}

// Collect is part of [prometheus.Collector].
func (v *volume) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	f, err := v.figures()
	if err != nil {
		gauge(volumeUp, 0)
		return
	}
	gauge(volumeUp, 1)
	gauge(volumeSize, float64(f.Size))
	gauge(volumeFree, float64(f.Free))
	if f.FreeInodes > 0 {
		gauge(volumeInodes, float64(f.FreeInodes))
	}
	if f.Patrolled.IsZero() {
		return
	}
	gauge(volumeUsed, float64(f.Bytes))
	gauge(volumeAdopted, float64(f.Adopted))
	gauge(volumeRepos, float64(f.Repos))
	gauge(volumeTrees, float64(f.Trees))
	gauge(volumePatrolled, float64(f.Patrolled.UnixMilli())/1000)
}

func (v *volume) figures() (VolumeFigures, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !time.Now().Before(v.until) {
		v.last, v.err = v.read()
		v.until = time.Now().Add(volumeFresh)
	}
	return v.last, v.err
}

// Volume exports a volume's figures until stop is called. There may be one at a time.
func (m *Metrics) Volume(read func() (VolumeFigures, error)) (stop func()) {
	v := &volume{read: read}
	m.registry.MustRegister(v)
	return func() { m.registry.Unregister(v) }
}

// Freed counts bytes that a patrol has freed.
func (m *Metrics) Freed(bytes int64) { m.freed.Add(float64(bytes)) }
