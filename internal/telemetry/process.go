package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

var handlerUp = prometheus.NewDesc("lockstep_handler_up",
	"Whether each handler of this process's roles is running (1) or not (0).", []string{"handler"}, nil)

// Handlers exports whether each handler of this process is running. It must be called at most once.
func (m *Metrics) Handlers(read func() map[string]bool) {
	m.registry.gauges(func(gauge gauge) {
		for name, up := range read() {
			value := 0.0
			if up {
				value = 1
			}
			gauge(handlerUp, value, name)
		}
	}, handlerUp)
}

// Build exports the program's version and revision. It must be called at most once.
func (m *Metrics) Build(version, revision string) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_build_info", Help: "Always 1; the labels identify the build.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "go": runtime.Version()},
	}, func() float64 { return 1 }))
}
