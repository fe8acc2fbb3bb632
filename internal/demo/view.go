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
	"lockstep/internal/term"
)

const (
	frameInterval = 200 * time.Millisecond // between frames on a terminal
	lineInterval  = time.Second            // between lines elsewhere
)

// Escape sequences of the live view.
const (
	HideCursor = "\x1b[?25l\x1b[?7l" // also stop wrapping long lines
	ShowCursor = "\x1b[?7h\x1b[?25h"
	upBy       = "\x1b[%dA"
	eraseDown  = "\x1b[J"
	eraseLine  = "\x1b[K"
)

// liveView shows events and state. On a terminal it redraws a picture of the state below the events; otherwise it prints lines.
type liveView struct {
	w     io.Writer
	began time.Time

	mu      sync.Mutex
	live    bool
	picture []string // lines on the screen
}

func newLiveView(std term.Streams) *liveView {
	v := &liveView{w: std.Stderr, began: time.Now()}
	if std.Colours(std.Stderr) {
		v.live = true
		fmt.Fprint(v.w, HideCursor)
	}
	return v
}

// Close removes the picture and restores the terminal. Later events are plain lines.
func (v *liveView) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		v.show("", nil)
		fmt.Fprint(v.w, ShowCursor)
		v.live = false
	}
}

// event prints an event.
func (v *liveView) event(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	line := fmt.Sprintf("%7.2fs  %s\n", time.Since(v.began).Seconds(), term.Rendered(fmt.Sprintf(format, args...), false))
	if v.live {
		v.show(line, v.picture)
	} else {
		fmt.Fprint(v.w, line)
	}
}

// Run prints the state until ctx is done: frame on a terminal, otherwise line.
func (v *liveView) Run(ctx context.Context, frame func() string, line func() string) {
	every := lineInterval
	if v.isLive() {
		every = frameInterval
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

func (v *liveView) isLive() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.live
}

// draw replaces the picture with new rows, cut to the height of the terminal.
func (v *liveView) draw(picture string) {
	lines := strings.Split(strings.TrimSuffix(term.Align(picture, true), "\n"), "\n")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.live {
		_, rows := term.TerminalSize(v.w)
		rows = cmp.Or(rows, 24) // height if the terminal does not report it
		v.show("", lines[:min(len(lines), max(1, rows-1))])
	}
}

// show writes text in place of the picture and the next picture below it, in one write to avoid flicker.
func (v *liveView) show(text string, picture []string) {
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

// lines returns a writer whose lines become events of the named process.
func (v *liveView) lines(name string) io.Writer { return &lineWriter{view: v, name: name} }

type lineWriter struct {
	view *liveView
	name string
	mu   sync.Mutex
	rest []byte
}

// Write implements [io.Writer].
func (l *lineWriter) Write(text []byte) (int, error) {
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
