package app

import (
	"time"

	"lockstep/internal/rollup"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/router/observe"
)

// observe turns events of the router into metrics, activities and rollups.
func (cfg Config) observe(reporter *state.Reporter, rollups *rollup.Recorder) func(observe.Event) {
	return func(e observe.Event) {
		switch e.Kind {
		case observe.Began:
			reporter.Begin(e.Job)
		case observe.Progressed:
			reporter.Progress(e.Job, e.Progress)
		case observe.Attempted:
			reporter.End(e.Job)
			cfg.Metrics.Worked(e.Job.Change.Type.Operation(), e.Took, e.Received, e.Err)
		case observe.Ended:
			cfg.Metrics.Change(e.Timeline.Outcome, string(e.Class))
			if e.Timeline.Outcome != observe.Forwarded { // counted where it is settled with a result
				countSettled(rollups, e.Timeline)
			}
			for _, m := range e.Missing {
				cfg.Metrics.MissingSubmodule(m.Class)
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

// countSettled counts a settled change, with the time from its stream entry to its result. One that was settled along with another
// found nothing more to do.
func countSettled(rollups *rollup.Recorder, t observe.Timeline) {
	outcome, delay := rollup.Other, time.Duration(-1)
	switch t.Outcome {
	case "synced":
		outcome = rollup.Synced
	case "unchanged", observe.Coalesced:
		outcome = rollup.Unchanged
	case observe.Failed:
		outcome = rollup.Failed
	}
	if t.Operation != "poll" && !t.Queued.IsZero() && !t.Settled.IsZero() {
		delay = max(0, t.Settled.Sub(t.Queued))
	}
	rollups.Count(outcome, delay)
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
