package volume

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/events"
)

// reportInterval is the minimum time between reports within a phase.
const reportInterval = 200 * time.Millisecond

// reporter reports the phases of a sync and their progress. Counting is an atomic addition that rarely reads
// the clock. All methods accept a nil reporter.
type reporter struct {
	report func(events.Progress)
	done   atomic.Int64 // units of the current phase

	mu    sync.Mutex
	phase events.Progress // as last reported
	next  time.Time       // time of the next report
}

func newReporter(report func(events.Progress)) *reporter {
	if report == nil {
		return nil
	}
	return &reporter{report: report}
}

// begin ends the current phase and begins another with total units, or 0 if unknown. Beginning the current
// phase again has no effect if it has no unit.
func (g *reporter) begin(phase events.Phase, unit string, total int64) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if unit == "" && g.phase.Phase == phase && g.phase.Unit == "" {
		return
	}
	g.finish()
	g.done.Store(0)
	g.phase = events.Progress{Phase: phase, Total: total, Unit: unit}
	g.next = time.Time{} // report the first unit immediately, as the second may take long
	g.report(g.phase)
}

// count adds n finished units. It is safe for concurrent use.
func (g *reporter) count(n int64) {
	if g == nil {
		return
	}
	done := g.done.Add(n)
	if done>>5 == (done-n)>>5 || !g.mu.TryLock() { // limit the cost per unit
		return
	}
	defer g.mu.Unlock()
	if now := time.Now(); !now.Before(g.next) {
		g.next = now.Add(reportInterval)
		g.finish()
	}
}

// end reports the final count of the last phase.
func (g *reporter) end() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finish()
}

// finish reports the current count if it has grown. The caller holds mu.
func (g *reporter) finish() {
	done := g.done.Load()
	if g.phase.Total > 0 {
		done = min(done, g.phase.Total)
	}
	if done > g.phase.Done {
		g.phase.Done = done
		g.report(g.phase)
	}
}

// countingWriter reports the bytes written to it.
type countingWriter struct {
	io.Writer
	reporter *reporter
}

func (m countingWriter) Write(p []byte) (int, error) {
	n, err := m.Writer.Write(p)
	m.reporter.count(int64(n))
	return n, err
}
