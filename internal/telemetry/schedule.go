package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/schedule"
)

type schedules struct {
	polls prometheus.Counter
	drift *prometheus.CounterVec
}

func newSchedules(registry *prometheus.Registry) schedules {
	s := schedules{
		polls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_polls_total", Help: "Polls of repositories scheduled by this process."}),
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_reconcile_drift_total", Help: "Deviations found by this process's reconciliations, by kind."}, []string{"kind"}),
	}
	for _, kind := range schedule.Kinds {
		s.drift.WithLabelValues(string(kind)) // export 0 from the start
	}
	registry.MustRegister(s.polls, s.drift)
	return s
}

// Polls counts n scheduled polls.
func (m *Metrics) Polls(n int) { m.schedules.polls.Add(float64(n)) }

// Reconciled counts the findings of a reconciliation.
func (m *Metrics) Reconciled(report schedule.Report) {
	for _, finding := range report.Findings {
		m.schedules.drift.WithLabelValues(string(finding.Kind)).Inc()
	}
}
