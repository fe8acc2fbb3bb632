package stream

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/logtest"
)

// Calls in progress or without a pooled connection may fail after others have succeeded again.
func TestLateFailuresAfterAnOutageAreNotANewOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, output := context.Background(), &logtest.Buffer{}
		o := &outage{log: slog.New(slog.NewTextHandler(output, nil))}
		expect := func(away, back int) {
			t.Helper()
			if got := strings.Count(output.String(), "is unavailable"); got != away {
				t.Errorf("logged %d outages, want %d", got, away)
			}
			if got := strings.Count(output.String(), "is back"); got != back {
				t.Errorf("logged %d recoveries, want %d", got, back)
			}
		}
		o.failed(ctx, io.EOF)
		time.Sleep(300 * time.Millisecond)
		o.failed(ctx, io.EOF)
		expect(1, 0)
		o.answered(ctx, time.Second)
		expect(1, 1)
		for range 10 {
			o.failed(ctx, io.EOF)
			o.answered(ctx, time.Second)
			time.Sleep(100 * time.Millisecond)
		}
		expect(1, 1)

		// A lasting new outage is logged, and its duration counts from the last answer before it.
		o.failed(ctx, io.EOF)
		time.Sleep(aftermath)
		if !o.recent(2 * time.Second) {
			t.Error("an outage that began in the aftermath of another does not count as long")
		}
		o.failed(ctx, io.EOF)
		expect(2, 1)
		o.answered(ctx, 2*time.Second)
		expect(2, 2)
		if !strings.Contains(output.String(), "away=2.1s") || !o.recent(2*time.Second) {
			t.Errorf("the outage took two seconds; log:\n%s", output)
		}

		// An outage that ends before it is logged may still count as long.
		o.failed(ctx, io.EOF)
		time.Sleep(aftermath - time.Millisecond)
		o.answered(ctx, time.Second)
		expect(2, 2)
		if !o.recent(time.Second) {
			t.Error("an outage that was not logged does not count as long")
		}
	})
}

// Redis that runs scripts late is reachable: the log says so, once, and still reports an outage that follows.
func TestLateAnswersAreNoOutage(t *testing.T) {
	t.Parallel()
	ctx, output := context.Background(), &logtest.Buffer{}
	o := &outage{log: slog.New(slog.NewTextHandler(output, nil))}
	o.failed(ctx, errLate)
	o.failed(ctx, errLate)
	if text := output.String(); strings.Count(text, "level=WARN msg=\"Redis answers late") != 1 || strings.Contains(text, "ERROR") {
		t.Errorf("two late answers:\n%s", text)
	}
	o.failed(ctx, io.EOF)
	o.answered(ctx, time.Second)
	o.answered(ctx, time.Second)
	if text := output.String(); strings.Count(text, "is unavailable") != 1 || strings.Count(text, "is back") != 1 {
		t.Errorf("then an outage:\n%s", text)
	}
}
