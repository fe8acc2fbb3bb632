package app

import (
	"errors"

	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
)

// observe turns events of changes into metrics, activities and progress reports.
func (cfg Config) observe(reporter *state.Reporter) func(handlers.Event) {
	return func(e handlers.Event) {
		switch e.Kind {
		case handlers.Began:
			reporter.Begin(e.Job, e.Job.Change, e.Job.Fence)
		case handlers.Progressed:
			reporter.Progress(e.Job, e.Progress)
		case handlers.Attempted:
			reporter.End(e.Job)
			cfg.Metrics.Worked(e.Job.Change.Type.Operation(), e.Took, e.Received, e.Err)
			if errors.Is(e.Err, volume.ErrStale) || errors.Is(e.Err, stream.ErrGuard) {
				cfg.Metrics.Fenced()
			}
		case handlers.Ended:
			cfg.Metrics.Change(e.Timeline.Outcome, string(e.Result.Class))
			for _, m := range e.Result.Missing {
				cfg.Metrics.Missing(m.Class)
			}
			if total, ok := e.Timeline.Total(); ok {
				cfg.Metrics.Settled(e.Timeline.Outcome, total)
			}
			for stage, took := range e.Timeline.Stages {
				cfg.Metrics.Stage(string(stage), took)
			}
		}
	}
}

// export exports the build and the state of each handler as metrics.
func (h *health) export(m *telemetry.Metrics) {
	b := ReadBuild()
	m.Build(b.Version, b.Revision)
	m.Handlers(func() map[string]bool {
		up := make(map[string]bool, len(h.heartbeats))
		for handler, hb := range h.heartbeats {
			up[handler] = hb.ready() == nil
		}
		return up
	})
}
