package router

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"lockstep/events"
)

func TestAnotherPubSubGetsTheDelayThatTheErrorAsksFor(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		min, max time.Duration
	}{
		"asks for an hour":  {&events.Error{RetryAfter: time.Hour, Err: io.EOF}, time.Hour, time.Hour},
		"within another":    {fmt.Errorf("read: %w", &events.Error{RetryAfter: time.Hour, Err: io.EOF}), time.Hour, time.Hour},
		"asks for no delay": {io.EOF, time.Second / 2, time.Second},
		"asks for the past": {&events.Error{RetryAfter: -time.Minute, Err: io.EOF}, time.Second / 2, time.Second},
	} {
		msg := message.NewMessage("1", nil)
		fail := func(*message.Message) ([]*message.Message, error) { return nil, tc.err }
		_, err := Disposer{Log: slog.New(slog.DiscardHandler)}.Middleware(fail)(msg)
		got, parseErr := time.ParseDuration(msg.Metadata.Get(delay.DelayedForKey))
		if !errors.Is(err, io.EOF) || parseErr != nil || got < tc.min || got > tc.max {
			t.Errorf("%s: delay %v, %v, %v", name, got, err, parseErr)
		}
	}
}

func TestRetryDelayDoublesWithJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Retry{
			Base: time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "base")),
			Max:  time.Duration(rapid.Int64Range(int64(time.Minute), int64(time.Hour)).Draw(t, "max")),
		}
		n := rapid.IntRange(-1, 200).Draw(t, "n")
		want := r.Base
		for i := 1; i < n && want < r.Max; i++ {
			want *= 2
		}
		want = min(want, r.Max)
		if got := r.Delay(n); got < want/2 || got > want {
			t.Fatalf("delay(%d) of %+v is %v, want %v to %v", n, r, got, want/2, want)
		}
	})
}

func TestImplausibleEntryIDExpires(t *testing.T) {
	r := Retry{}.withDefaults()
	for name, entry := range map[string]string{
		"long ago": "1-0", "the far future": "99999999999999-0", "beyond any clock": "18446744073709551615-0",
	} {
		t.Run(name, func(t *testing.T) {
			age, turns := time.Duration(0), 1
			for ; !r.tooOld(entry, turns, time.Now()) && age < 2*r.MaxAge; turns++ {
				age += r.Delay(turns)
			}
			if age < r.MaxAge/2 || age > r.MaxAge {
				t.Errorf("too old after %v and %d turns, want within %v", age, turns, r.MaxAge)
			}
		})
	}
	if young := strconv.FormatInt(time.Now().UnixMilli(), 10) + "-0"; r.tooOld(young, 1<<20, time.Now()) {
		t.Error("a recent entry is too old because of its deliveries")
	}
}
