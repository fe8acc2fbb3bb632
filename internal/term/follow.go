package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"lockstep/internal/redisx"
)

// Forever is the timeout of commands that run until interrupted.
const Forever = 100 * 365 * 24 * time.Hour

const statusEvery = 2 * time.Second

// Table is data that prints as a table.
type Table interface{ Table(w io.Writer) }

// Follow prints what read returns every 2 s until ctx is done. On a terminal each table replaces the previous one. It tolerates
// Redis outages after the first success.
func Follow(ctx context.Context, std Streams, out Output, read func(context.Context) (Table, error)) error {
	show := func(data Table) error { return out.Next(std.Stdout, data) }
	if out.IsTable() {
		screen := newScreen(std)
		defer screen.end()
		show = screen.Show
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		readCtx, cancel := context.WithTimeout(ctx, StatusTimeout)
		data, err := read(readCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (first || !redisx.Unavailable(err) && !errors.Is(err, context.DeadlineExceeded)):
			return err
		case err != nil && !out.IsTable():
			fmt.Fprintf(std.Stderr, "lockstep: %s\n", Rendered(OneLine(err), false))
		case err != nil:
			data = outage{err}
			fallthrough
		default:
			if err := show(data); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// outage is shown while Redis is unavailable.
type outage struct{ err error }

func (o outage) Table(w io.Writer) {
	fmt.Fprintf(w, "redis\t%s\nhealth\t%s\n", OneLine(o.err), Paint(MarkBad, "unavailable"))
}

// screen shows one table after the other, on a terminal in place.
type screen struct {
	std  Streams
	file *os.File // nil if stdout is not a terminal
}

func newScreen(std Streams) *screen {
	s := &screen{std: std}
	if Terminal(std.Stdout) {
		s.file, _ = std.Stdout.(*os.File)
		_, _ = io.WriteString(s.file, "\x1b[2J\x1b[?7l") // clear, and cut long lines
	}
	return s
}

func (s *screen) Show(data Table) error {
	var rows bytes.Buffer
	data.Table(&rows)
	text := Align(rows.String(), s.std.Colours(s.std.Stdout))
	if s.file == nil {
		_, err := io.WriteString(s.std.Stdout, text+"\n")
		return err
	}
	lines := strings.SplitAfter(text, "\n")
	if _, rows := TerminalSize(s.file); rows > 1 {
		lines = lines[:min(len(lines), rows-1)]
	}
	text = strings.ReplaceAll(strings.Join(lines, ""), "\n", "\x1b[K\n")
	_, err := io.WriteString(s.file, "\x1b[H"+text+"\x1b[J")
	return err
}

func (s *screen) end() {
	if s.file != nil {
		_, _ = io.WriteString(s.file, "\x1b[?7h")
	}
}

// StatusTimeout limits one read of the service's state.
const StatusTimeout = 10 * time.Second
