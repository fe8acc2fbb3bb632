package main

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
	forEver     = 100 * 365 * 24 * time.Hour // until interrupted
	statusEvery = 2 * time.Second
)

// tabled is data that can be a table.
type tabled interface{ table(w io.Writer) }

// follow shows again and again what look finds, until ctx is done. On a terminal each screen takes the place of
// the one before, and so does what is wrong with a Redis that was there before and goes away.
func follow(ctx context.Context, std streams, out output, look func(context.Context) (tabled, error)) error {
	show := func(data tabled) error { return out.next(std.stdout, data) }
	if out.isTable() {
		screen := newScreen(std)
		defer screen.end()
		show = screen.show
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		looking, cancel := context.WithTimeout(ctx, statusWithin)
		data, err := look(looking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (first || !redisx.Unavailable(err) && !errors.Is(err, context.DeadlineExceeded)):
			return err
		case err != nil && !out.isTable():
			fmt.Fprintf(std.stderr, "lockstep: %s\n", rendered(oneLine(err), false))
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

func (t trouble) table(w io.Writer) {
	fmt.Fprintf(w, "redis\t%s\nhealth\t%s\n", oneLine(t.err), paint(markBad, "unavailable"))
}

// screen is where tables take each other's place: on a terminal. Elsewhere they follow each other.
type screen struct {
	std  streams
	file *os.File // nil when it is no terminal
}

func newScreen(std streams) *screen {
	s := &screen{std: std}
	if terminal(std.stdout) {
		s.file, _ = std.stdout.(*os.File)
		_, _ = io.WriteString(s.file, "\x1b[2J\x1b[?7l") // clear it, and do not wrap long lines
	}
	return s
}

func (s *screen) show(data tabled) error {
	var rows bytes.Buffer
	data.table(&rows)
	text := align(rows.String(), s.std.colours(s.std.stdout))
	if s.file == nil {
		_, err := io.WriteString(s.std.stdout, text+"\n")
		return err
	}
	lines := strings.SplitAfter(text, "\n")
	if _, rows := terminalSize(s.file); rows > 1 {
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

const statusWithin = 10 * time.Second
