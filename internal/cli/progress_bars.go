package cli

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"lockstep/events"
)

// bars draws one bar for each long phase on a terminal.
type bars struct {
	w     io.Writer
	all   *mpb.Progress // nil before the first bar
	bar   *mpb.Bar      // nil if no bar is active
	name  string        // of the phase
	total int64         // work in the phase; 0 if unknown
	took  *atomic.Int64 // duration of the phase in ns
}

func (b *bars) draw(p events.Progress, phase, _ time.Duration) {
	name := label(p)
	if b.name != name {
		b.finish()
	}
	if b.bar == nil && phase >= barAfter {
		b.add(p, name)
	}
	if b.bar != nil {
		b.took.Store(int64(phase))
		b.bar.SetCurrent(p.Done)
	}
}

// add adds a bar for a phase.
func (b *bars) add(p events.Progress, name string) {
	if b.all == nil {
		b.all = mpb.New(mpb.WithOutput(b.w), mpb.WithRefreshRate(drawEvery))
	}
	var style mpb.BarFillerBuilder = mpb.BarStyle().Tip(">").Filler("=").Padding(" ")
	width := 40
	if p.Total == 0 {
		style, width = mpb.SpinnerStyle("|", "/", "-", `\`).PositionLeft(), 1
	}
	took := &atomic.Int64{} // read by mpb's goroutine
	text := func(s decor.Statistics) string {
		p.Done = s.Current
		after := time.Duration(took.Load()).Round(time.Second).String()
		if done := amount(p); done != "" {
			return done + "  " + after
		}
		return after
	}
	b.name, b.total, b.took = name, p.Total, took
	b.bar = b.all.New(p.Total, style, mpb.BarWidth(width), mpb.BarFillerClearOnComplete(),
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-18s", name))), mpb.AppendDecorators(decor.Any(text)))
}

// finish completes the active bar: its phase has ended.
func (b *bars) finish() {
	switch {
	case b.bar == nil:
		return
	case b.total > 0:
		b.bar.SetCurrent(b.total) // SetTotal has no effect on a bar with a total
	default:
		b.bar.SetTotal(-1, true)
	}
	b.bar = nil
}

func (b *bars) Close(failed bool) {
	if b.all == nil {
		return
	}
	if b.bar != nil && failed {
		b.bar.Abort(false) // keeps the progress on the screen
	} else {
		b.finish()
	}
	b.all.Wait()
}
