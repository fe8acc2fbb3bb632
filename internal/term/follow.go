package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lockstep/internal/redisx"
)

// Forever is the timeout of commands that run until interrupted.
const Forever = 100 * 365 * 24 * time.Hour

// StatusTimeout limits one read of the service's state.
const StatusTimeout = 10 * time.Second

const statusEvery = 2 * time.Second

// Table is data that prints as a table.
type Table interface{ Table(w io.Writer) }

// Follow prints what read returns every 2 s until ctx is done. On a terminal each table replaces the previous
// one. It tolerates Redis outages after the first success.
func Follow(ctx context.Context, std Streams, out Output, read func(context.Context) (Table, error)) error {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		readCtx, cancel := context.WithTimeout(ctx, StatusTimeout)
		data, err := read(readCtx)
		cancel()
		outage := redisx.Unavailable(err) || errors.Is(err, context.DeadlineExceeded)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && (first || !outage):
			return err
		case err != nil:
			fmt.Fprintf(std.Stderr, "lockstep: redis is unavailable: %s\n", Clean(OneLine(err)))
		default:
			if err := out.next(std.Stdout, data); err != nil {
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

const clearScreen = "\x1b[H\x1b[2J"

// next prints one table of a series.
func (o *Output) next(w io.Writer, data Table) error {
	if !o.IsTable() {
		return o.Next(w, data)
	}
	var rows bytes.Buffer
	data.Table(&rows)
	text := Align(rows.String())
	if isTerminal(w) {
		text = clearScreen + text
	} else {
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
