package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"lockstep/internal/schedule"
)

type schedules struct {
	polls prometheus.Counter
	drift *prometheus.CounterVec
}

func newSchedules(r registrar) schedules {
	s := schedules{
		polls: r.counter("lockstep_polls_total", "Polls of repositories scheduled by this process."),
		drift: r.counters("lockstep_reconcile_drift_total",
			"Deviations found by this process's reconciliations, by kind.", "kind"),
	}
	for _, kind := range schedule.Kinds {
		s.drift.WithLabelValues(string(kind)) // export 0 from the start
	}
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
