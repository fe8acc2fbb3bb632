package app

import (
	"lockstep/internal/telemetry"
	"lockstep/router"
)

// timed counts how long changes take from end to end, and where.
func timed(m *telemetry.Metrics) func(router.Timeline) {
	return func(t router.Timeline) {
		if total, ok := t.Total(); ok {
			m.Settled(t.Outcome, total)
		}
		for stage, took := range t.Stages {
			m.Stage(string(stage), took)
		}
	}
}

// export exports which build a process is, and which of its handlers run.
func (v *vitals) export(m *telemetry.Metrics) {
	b := ReadBuild()
	m.Build(b.Version, b.Revision)
	m.Handlers(func() map[string]bool {
		up := make(map[string]bool, len(v.pulses))
		for handler, p := range v.pulses {
			up[handler] = p.Ready() == nil
		}
		return up
	})
}
