package volume

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/events"
)

// reportInterval is how long nothing is told of a phase after something was.
const reportInterval = 200 * time.Millisecond

// reporter tells somebody of the phases of a sync, and now and then how far one is. Counting is an atomic
// addition; the clock is looked at now and then only. A nil reporter tells nobody.
type reporter struct {
	report func(events.Progress)
	done   atomic.Int64 // of the phase under way

	mu    sync.Mutex
	phase events.Progress // as last told
	next  time.Time       // when to tell more of it
}

func newReporter(report func(events.Progress)) *reporter {
	if report == nil {
		return nil
	}
	return &reporter{report: report}
}

// begin ends the phase under way, and begins another: total units, or 0 when that is not known. One that counts
// nothing goes on when it is begun again.
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
	g.next = time.Time{} // the first that is counted is told at once: there may be no second for long
	g.report(g.phase)
}

// count adds n units that are done. They may be counted by many goroutines.
func (g *reporter) count(n int64) {
	if g == nil {
		return
	}
	done := g.done.Add(n)
	if done>>5 == (done-n)>>5 || !g.mu.TryLock() { // one unit is little work, and who has the lock tells enough
		return
	}
	defer g.mu.Unlock()
	if now := time.Now(); !now.Before(g.next) {
		g.next = now.Add(reportInterval)
		g.finish()
	}
}

// end tells how the last phase ended.
func (g *reporter) end() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.finish()
}

// finish tells how much of the phase is done, if that is not known. The caller holds mu.
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

// measured is a writer that counts bytes.
type countingWriter struct {
	io.Writer
	reporter *reporter
}

func (m countingWriter) Write(p []byte) (int, error) {
	n, err := m.Writer.Write(p)
	m.reporter.count(int64(n))
	return n, err
}
