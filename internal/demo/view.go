package demo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

const (
	demoFrame = 200 * time.Millisecond // between two pictures on a terminal
	demoLine  = time.Second            // between two lines elsewhere
)

// Escape sequences of the live view.
const (
	HideCursor = "\x1b[?25l\x1b[?7l" // and cut lines that are too long, instead of wrapping them
	ShowCursor = "\x1b[?7h\x1b[?25h"
	upBy       = "\x1b[%dA"
	eraseDown  = "\x1b[J"
	eraseLine  = "\x1b[K"
)

// demoView shows what happens. On a terminal it draws a picture, again and again in the same place, with the events
// above it; elsewhere events are lines, and so is how far everything has come, once a second.
type demoView struct {
	w     io.Writer
	began time.Time

	mu      sync.Mutex
	live    bool
	picture []string // lines that stand
}

func newDemoView(std term.Streams) *demoView {
	v := &demoView{w: std.Stderr, began: time.Now()}
	if std.Colours(std.Stderr) {
		v.live = true
		fmt.Fprint(v.w, HideCursor)
	}
	return v
}

// Close takes the picture away and gives the terminal back. What is told later comes as lines.
func (v *demoView) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		v.Show("", nil)
		fmt.Fprint(v.w, ShowCursor)
		v.live = false
	}
}

// event tells what has happened.
func (v *demoView) event(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	line := fmt.Sprintf("%7.2fs  %s\n", time.Since(v.began).Seconds(), term.Rendered(fmt.Sprintf(format, args...), false))
	if v.live {
		v.Show(line, v.picture)
	} else {
		fmt.Fprint(v.w, line)
	}
}

// Run draws until ctx is done: what frame returns, or line when it is not on a terminal.
func (v *demoView) Run(ctx context.Context, frame func() string, line func() string) {
	every := demoLine
	if v.isLive() {
		every = demoFrame
	}
	for {
		if v.isLive() {
			v.draw(frame())
		}
		if !app.Sleep(ctx, every) {
			return
		}
		if !v.isLive() {
			v.event("%s", line())
		}
	}
}

func (v *demoView) isLive() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.live
}

// draw puts the picture, as rows of cells, in the place of the last one. A terminal that is too low sees its top.
func (v *demoView) draw(picture string) {
	lines := strings.Split(strings.TrimSuffix(term.Align(picture, true), "\n"), "\n")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		_, rows := term.TerminalSize(v.w)
		rows = cmp.Or(rows, 24) // as an old one has that does not say
		v.Show("", lines[:min(len(lines), max(1, rows-1))])
	}
}

// Show writes text where the picture stands, and the next picture below it: at once, or it would flicker.
func (v *demoView) Show(text string, picture []string) {
	var b strings.Builder
	if len(v.picture) > 0 {
		fmt.Fprintf(&b, upBy, len(v.picture))
	}
	b.WriteString(strings.ReplaceAll(text, "\n", eraseLine+"\n"))
	for _, line := range picture {
		b.WriteString(line + eraseLine + "\n")
	}
	b.WriteString(eraseDown)
	v.picture = picture
	fmt.Fprint(v.w, b.String())
}

// lines is a Writer whose lines become events, of a process that has a name.
func (v *demoView) lines(name string) io.Writer { return &demoLines{view: v, name: name} }

type demoLines struct {
	view *demoView
	name string
	mu   sync.Mutex
	rest []byte
}

// Write is part of [io.Writer].
func (l *demoLines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, text...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(text), nil
		}
		l.view.event("%s: %s", l.name, line)
		l.rest = rest
	}
}
