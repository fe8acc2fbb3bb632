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

const (
	ForEver     = 100 * 365 * 24 * time.Hour // until interrupted
	statusEvery = 2 * time.Second
)

// Tabled is data that can be a table.
type Tabled interface{ Table(w io.Writer) }

// Follow shows again and again what look finds, until ctx is done. On a terminal each screen takes the place of
// the one before, and so does what is wrong with a Redis that was there before and goes away.
func Follow(ctx context.Context, std Streams, out Output, look func(context.Context) (Tabled, error)) error {
	show := func(data Tabled) error { return out.Next(std.Stdout, data) }
	if out.IsTable() {
		screen := newScreen(std)
		defer screen.end()
		show = screen.Show
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		looking, cancel := context.WithTimeout(ctx, StatusWithin)
		data, err := look(looking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (first || !redisx.Unavailable(err) && !errors.Is(err, context.DeadlineExceeded)):
			return err
		case err != nil && !out.IsTable():
			fmt.Fprintf(std.Stderr, "lockstep: %s\n", Rendered(OneLine(err), false))
		case err != nil:
			data = trouble{err}
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

// trouble is a screen that says why there is no other.
type trouble struct{ err error }

func (t trouble) Table(w io.Writer) {
	fmt.Fprintf(w, "redis\t%s\nhealth\t%s\n", OneLine(t.err), Paint(MarkBad, "unavailable"))
}

// screen is where tables take each other's place: on a terminal. Elsewhere they follow each other.
type screen struct {
	std  Streams
	file *os.File // nil when it is no terminal
}

func newScreen(std Streams) *screen {
	s := &screen{std: std}
	if Terminal(std.Stdout) {
		s.file, _ = std.Stdout.(*os.File)
		_, _ = io.WriteString(s.file, "\x1b[2J\x1b[?7l") // clear it, and do not wrap long lines
	}
	return s
}

func (s *screen) Show(data Tabled) error {
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

const StatusWithin = 10 * time.Second
