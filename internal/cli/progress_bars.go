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

// bars are for a terminal: one for each phase that lasts, the last one moving.
type bars struct {
	w     io.Writer
	all   *mpb.Progress // nil before the first
	bar   *mpb.Bar      // nil while there is none
	name  string        // of the phase that it shows
	total int64         // of that; 0 when nobody knows
	took  *atomic.Int64 // ns of that
}

func (b *bars) draw(p events.Progress, phase, _ time.Duration) {
	name := label(p)
	if b.name != name {
		b.finish()
	}
	if b.bar == nil && phase >= barAfter {
		b.begin(p, name)
	}
	if b.bar != nil {
		b.took.Store(int64(phase))
		b.bar.SetCurrent(p.Done)
	}
}

// begin adds a bar for a phase that has lasted for a while.
func (b *bars) begin(p events.Progress, name string) {
	if b.all == nil {
		b.all = mpb.New(mpb.WithOutput(b.w), mpb.WithRefreshRate(drawEvery))
	}
	var style mpb.BarFillerBuilder = mpb.BarStyle().Tip(">").Filler("=").Padding(" ")
	width := 40
	if p.Total == 0 { // nobody knows how far it is
		style, width = mpb.SpinnerStyle("|", "/", "-", `\`).PositionLeft(), 1
	}
	took := &atomic.Int64{} // this bar's own: it is drawn from elsewhere
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

// finish completes the bar that there is: its phase is over, however far it was when last seen.
func (b *bars) finish() {
	switch {
	case b.bar == nil:
		return
	case b.total > 0:
		b.bar.SetCurrent(b.total) // SetTotal is without effect on a bar that has one
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
		b.bar.Abort(false) // it stays as far as it came
	} else {
		b.finish()
	}
	b.all.Wait()
}
