package telemetry

import "github.com/prometheus/client_golang/prometheus"

var slotsNow = prometheus.NewDesc("lockstep_slots", "Repositories that this worker may process at once; fewer than configured under pressure.", nil, nil)

// Slots exports the number of slots of a worker until stop is called.
func (m *Metrics) Slots(size func() int) (stop func()) {
	c := &collector{descs: []*prometheus.Desc{slotsNow}, collect: func(gauge gauge) { gauge(slotsNow, float64(size())) }}
	m.registry.MustRegister(c)
	return func() { m.registry.Unregister(c) }
}
