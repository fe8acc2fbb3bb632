package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/schedule"
)

// schedules counts what is looked for without an event.
type schedules struct {
	polls prometheus.Counter
	drift *prometheus.CounterVec
}

func newSchedules(registry *prometheus.Registry) schedules {
	s := schedules{
		polls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_polls_total", Help: "Polls of repositories that this process had asked for."}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_reconcile_drift_total", Help: "What reconciliations of this process found that was not as it should be."}, []string{"kind"}),
	}
	for _, kind := range schedule.Kinds {
		s.drift.WithLabelValues(string(kind)) // there from the start, at 0
	}
	registry.MustRegister(s.polls, s.drift)
	return s
}

// Polls counts polls asked for.
func (m *Metrics) Polls(n int) { m.schedules.polls.Add(float64(n)) }

// Reconciled counts what a reconciliation found.
func (m *Metrics) Reconciled(report schedule.Report) {
	for _, found := range report.Findings {
		m.schedules.drift.WithLabelValues(string(found.Kind)).Inc()
	}
}
