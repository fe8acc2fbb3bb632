package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

var handlerUp = prometheus.NewDesc("lockstep_handler_up", "Whether a handler that this process has to run does run.", []string{"handler"}, nil)

// handlers are read when they are asked for.
type handlers struct{ read func() map[string]bool }

// Describe is part of [prometheus.Collector].
func (*handlers) Describe(to chan<- *prometheus.Desc) { to <- handlerUp }

// Collect is part of [prometheus.Collector].
func (h *handlers) Collect(to chan<- prometheus.Metric) {
	for name, up := range h.read() {
		value := 0.0
		if up {
			value = 1
		}
		to <- prometheus.MustNewConstMetric(handlerUp, prometheus.GaugeValue, value, name)
	}
}

// Handlers exports which of the handlers that this process has to run do run. It is to be called once.
func (m *Metrics) Handlers(read func() map[string]bool) { m.registry.MustRegister(&handlers{read}) }

// Build exports which build this is. It is to be called once.
func (m *Metrics) Build(version, revision string) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_build_info", Help: "Always 1; its labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "go": runtime.Version()},
	}, func() float64 { return 1 }))
}
