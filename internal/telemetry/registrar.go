package telemetry

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// registrar makes metrics and registers them.
type registrar struct {
	*prometheus.Registry
	reads *reads
}

func newRegistrar() registrar {
	r := registrar{prometheus.NewRegistry(), &reads{all: map[*func(gauge)]bool{}}}
	r.MustRegister(r.reads)
	return r
}

func (r registrar) counter(name, help string) prometheus.Counter {
	return promauto.With(r).NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (r registrar) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(r).NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func (r registrar) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// gauge exports a value, with the names and values of its labels in turn.
type gauge func(name, help string, value float64, labels ...string)

// gauges has read called on each scrape, until stop is called.
func (r registrar) gauges(read func(gauge)) (stop func()) {
	r.reads.mu.Lock()
	defer r.reads.mu.Unlock()
	r.reads.all[&read] = true
	return func() {
		r.reads.mu.Lock()
		defer r.reads.mu.Unlock()
		delete(r.reads.all, &read)
	}
}

// reads are the functions that read gauges on each scrape.
type reads struct {
	mu  sync.Mutex
	all map[*func(gauge)]bool
}

// Describe implements [prometheus.Collector]. Which gauges there are depends on what is read.
func (*reads) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (r *reads) Collect(to chan<- prometheus.Metric) {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.all))
	r.mu.Unlock()
	emit := func(name, help string, value float64, labels ...string) {
		var names, values []string
		for pair := range slices.Chunk(labels, 2) {
			names, values = append(names, pair[0]), append(values, pair[1])
		}
		desc := prometheus.NewDesc(name, help, names, nil)
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
	}
	var reading sync.WaitGroup // beside each other: Redis may not answer
	for _, read := range all {
		reading.Go(func() { (*read)(emit) })
	}
	reading.Wait()
}

// flag returns 1 for true and 0 for false.
func flag(set bool) float64 {
	if set {
		return 1
	}
	return 0
}
