package events_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"lockstep/events"
)

func TestDispositionAndClassSurviveWrapping(t *testing.T) {
	auth := events.Errorf(events.Permanent, events.ClassAuth, "fetch: %w", io.EOF)
	for name, tc := range map[string]struct {
		err         error
		disposition events.Disposition
		class       events.Class
	}{
		"none":              {nil, events.Retryable, events.ClassInternal},
		"an unknown error":  {io.EOF, events.Retryable, events.ClassInternal},
		"cancelled":         {context.Canceled, events.Retryable, events.ClassInternal},
		"bare":              {auth, events.Permanent, events.ClassAuth},
		"wrapped":           {fmt.Errorf("sync acme/widgets: %w", auth), events.Permanent, events.ClassAuth},
		"wrapped twice":     {fmt.Errorf("a: %w", fmt.Errorf("b: %w", auth)), events.Permanent, events.ClassAuth},
		"joined":            {errors.Join(io.ErrClosedPipe, auth), events.Permanent, events.ClassAuth},
		"one of two wraps":  {fmt.Errorf("%w: %w", io.ErrClosedPipe, auth), events.Permanent, events.ClassAuth},
		"by its own type":   {&events.Error{Disposition: events.Contention, Class: events.ClassBusy, Err: io.EOF}, events.Contention, events.ClassBusy},
		"flattened to text": {errors.New("sync: " + auth.Error()), events.Retryable, events.ClassInternal},
		"the outermost wins": {
			events.Errorf(events.Malformed, events.ClassConfig, "read: %w", fmt.Errorf("x: %w", auth)),
			events.Malformed, events.ClassConfig,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := events.DispositionOf(tc.err); got != tc.disposition {
				t.Errorf("disposition %v, want %v", got, tc.disposition)
			}
			if got := events.ClassOf(tc.err); got != tc.class {
				t.Errorf("class %v, want %v", got, tc.class)
			}
		})
	}
}

func TestRetryAfterIsTheOutermostError(t *testing.T) {
	asks := &events.Error{Disposition: events.Contention, Class: events.ClassBusy, RetryAfter: time.Minute, Err: io.EOF}
	for name, tc := range map[string]struct {
		err  error
		want time.Duration
	}{
		"none":               {nil, 0},
		"an unknown error":   {io.EOF, 0},
		"one that asks":      {fmt.Errorf("sync acme/widgets: %w", asks), time.Minute},
		"one that does not":  {events.Errorf(events.Retryable, events.ClassServer, "x"), 0},
		"the outermost wins": {events.Errorf(events.Retryable, events.ClassServer, "read: %w", asks), 0},
	} {
		if got := events.RetryAfter(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestErrorfKeepsTheCauseAndTheText(t *testing.T) {
	err := events.Errorf(events.Permanent, events.ClassAuth, "fetch %s: %w", "acme/widgets", io.EOF)
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is lost")
	}
	if err.Error() != "fetch acme/widgets: EOF" {
		t.Errorf("got %q", err)
	}
}

func TestDispositionsHaveNames(t *testing.T) {
	for d, want := range map[events.Disposition]string{
		events.Retryable: "retryable", events.Contention: "contention",
		events.Permanent: "permanent", events.Malformed: "malformed", 9: "Disposition(9)",
	} {
		if d.String() != want {
			t.Errorf("got %s, want %s", d, want)
		}
	}
}

func TestScopeIsThatOfTheOutermostError(t *testing.T) {
	host := &events.Error{Disposition: events.Contention, Scope: events.ScopeHost, Err: io.EOF}
	for name, tc := range map[string]struct {
		err  error
		want events.Scope
	}{
		"none":               {nil, events.ScopeChange},
		"an unknown error":   {io.EOF, events.ScopeChange},
		"wrapped":            {fmt.Errorf("sync acme/widgets: %w", host), events.ScopeHost},
		"the outermost wins": {events.Errorf(events.Retryable, events.ClassServer, "read: %w", host), events.ScopeChange},
	} {
		if got := events.ScopeOf(tc.err); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
