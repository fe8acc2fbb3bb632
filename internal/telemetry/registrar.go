package telemetry

import "github.com/prometheus/client_golang/prometheus"

// registrar makes metrics and registers them.
type registrar struct{ *prometheus.Registry }

func registered[C prometheus.Collector](r registrar, c C) C {
	r.MustRegister(c)
	return c
}

func (r registrar) counter(name, help string) prometheus.Counter {
	return registered(r, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func (r registrar) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return registered(r, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}))
}

func (r registrar) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return registered(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
		labels))
}

// collector reads gauges on each scrape.
type collector struct {
	descs   []*prometheus.Desc
	collect func(gauge)
}

// gauges exports values that collect reads on each scrape, until stop is called.
func (r registrar) gauges(collect func(gauge), descs ...*prometheus.Desc) (stop func()) {
	c := &collector{descs, collect}
	r.MustRegister(c)
	return func() { r.Unregister(c) }
}

// gauge exports a value.
type gauge func(desc *prometheus.Desc, value float64, labels ...string)

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		to <- desc
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	c.collect(func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	})
}
