package app

import (
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/router/observe"
)

// observe feeds the metrics, the list of work in progress and the progress display from the router's events.
func (cfg Config) observe(reporter *state.Reporter) func(observe.Event) {
	return func(e observe.Event) {
		switch e.Kind {
		case observe.Began:
			reporter.Begin(e.Job)
		case observe.Progressed:
			reporter.Progress(e.Job, e.Progress)
			if cfg.Progress != nil {
				cfg.Progress(e.Progress)
			}
		case observe.Attempted:
			reporter.End(e.Job)
			cfg.Metrics.Worked(e.Job.Change.Type.Operation(), e.Took, e.Received, e.Err)
		case observe.Ended:
			cfg.Metrics.Change(e.Timeline.Outcome, string(e.Class))
			if total, ok := e.Timeline.Total(); ok {
				cfg.Metrics.Settled(e.Timeline.Outcome, total)
			}
			for stage, took := range e.Timeline.Stages {
				cfg.Metrics.Stage(string(stage), took)
			}
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
