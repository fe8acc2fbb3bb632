package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/schedule"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// script simulates the registry and the backlog, and records calls. In a synctest bubble it shares the poller's clock.
type script struct {
	began   time.Time
	waiting []int // backlog of each call; the last one repeats
	away    error
	due     func(look int) (taken int, next time.Duration, err error)

	calls  []time.Duration // times of EnqueueDue
	checks int             // calls of backlog
	polls  []int
	log    strings.Builder
}

func (s *script) EnqueueDue(context.Context, int, time.Duration) (int, time.Duration, error) {
	s.calls = append(s.calls, time.Since(s.began))
	return s.due(len(s.calls))
}

func (s *script) backlog(context.Context) (int, error) {
	n := s.waiting[min(s.checks, len(s.waiting)-1)]
	s.checks++
	return n, s.away
}

// run runs a poller for span.
func (s *script) run(t *testing.T, span time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		s.began = time.Now()
		schedule.Poller{
			Due: s, Usual: time.Hour, Backlog: s.backlog, Observe: func(n int) { s.polls = append(s.polls, n) },
			Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		}.Run(ctx)
		if late := time.Since(s.began) - span; late != 0 {
			t.Errorf("Run returned %v after cancellation", late)
		}
	})
}

func TestPollerSleepsUntilTheNextPoll(t *testing.T) {
	for name, tc := range map[string]struct {
		next        time.Duration
		least, most int // calls within a minute
	}{
		"at once":     {0, 59, 61},
		"soon":        {5 * time.Second, 29, 31},
		"in a month":  {30 * 24 * time.Hour, 29, 31}, // a watch with a shorter interval may be added
		"in a moment": {time.Millisecond, 59, 61},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{waiting: []int{0}, due: func(int) (int, time.Duration, error) { return 0, tc.next, nil }}
			s.run(t, time.Minute)
			if n := len(s.calls); n < tc.least || n > tc.most || s.calls[0] >= time.Second || len(s.polls) > 0 {
				t.Errorf("%d calls at %v, polls %v; want %d to %d, the first within a second", n, s.calls, s.polls, tc.least, tc.most)
			}
		})
	}
}

func TestPollerQueuesFullBatchesWithoutAPause(t *testing.T) {
	s := &script{waiting: []int{0}, due: func(look int) (int, time.Duration, error) {
		if look < 10 {
			return 100, 0, nil
		}
		return 30, time.Hour, nil
	}}
	s.run(t, 2*time.Second)
	if len(s.calls) != 10 || s.calls[9] != s.calls[0] || len(s.polls) != 10 || s.polls[9] != 30 {
		t.Errorf("calls at %v, polls %v; want ten at once, then a pause", s.calls, s.polls)
	}
}

func TestPollerPausesWhileWorkersAreBehind(t *testing.T) {
	s := &script{waiting: []int{6000, 6000, 6000, 4000}, due: func(int) (int, time.Duration, error) { return 1, time.Hour, nil }}
	s.run(t, time.Minute)
	if len(s.calls) == 0 || s.calls[0] < 45*time.Second || strings.Count(s.log.String(), "level=WARN") != 1 {
		t.Errorf("calls at %v, log:\n%s\nwant the first after they have caught up, and one warning", s.calls, &s.log)
	}
}

func TestPollerSurvivesRedisOutage(t *testing.T) {
	away := errors.New("connection refused")
	s := &script{waiting: []int{0}, due: func(look int) (int, time.Duration, error) {
		if look <= 3 {
			return 0, 0, away
		}
		return 1, time.Hour, nil
	}}
	s.run(t, 90*time.Second)
	for i := range s.calls[:3] {
		if pause := s.calls[i+1] - s.calls[i]; pause < 7*time.Second || pause > 15*time.Second {
			t.Errorf("calls at %v, want pauses of 7 to 15 s while Redis is down", s.calls)
		}
	}
	if len(s.polls) == 0 {
		t.Error("no polls when Redis is back")
	}
	if log := s.log.String(); strings.Count(log, "level=WARN") != 1 || strings.Count(log, "level=INFO") != 1 {
		t.Errorf("log:\n%s\nwant one warning and one message that polls resumed", log)
	}
	s = &script{waiting: []int{0}, away: away}
	s.run(t, time.Minute)
	if len(s.calls) != 0 || s.checks < 4 {
		t.Errorf("%d calls of EnqueueDue, %d of backlog; want none while the backlog is unknown", len(s.calls), s.checks)
	}
}

// Concurrent pollers, some of which restart, and a short Redis outage: each repository is polled once per interval.
func TestConcurrentPollersPollEachRepositoryOnce(t *testing.T) {
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	ctx, client := context.Background(), server.Client()
	registry := watch.NewRegistry(client, events.DefaultNamespace)
	const repos = 250
	for n := range repos {
		w, err := watch.New(watch.Watch{App: "docs", URL: fmt.Sprintf("https://example.com/acme/r%d.git", n)})
		if err == nil {
			_, err = registry.Put(ctx, w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put := client.XLen(ctx, events.DefaultNamespace.Changes()).Val()
	// All are due and were never polled.
	for n := range repos {
		key := fmt.Sprintf("acme/r%d", n)
		client.HDel(ctx, events.DefaultNamespace.Watches()+"of:"+key, "asked")
		client.ZAdd(ctx, events.DefaultNamespace.Poll(), redis.Z{Member: key})
	}
	poll := func() (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		own := server.Client()
		var run sync.WaitGroup
		run.Go(func() {
			schedule.Poller{
				Due: watch.NewRegistry(own, events.DefaultNamespace), Usual: time.Hour, Log: slog.New(slog.DiscardHandler),
				Backlog: func(ctx context.Context) (int, error) { return 0, own.Ping(ctx).Err() },
			}.Run(ctx)
		})
		return func() { cancel(); run.Wait() }
	}
	stopFirst, stopSecond := poll(), poll()
	defer stopSecond()
	queued := func() int64 { return client.XLen(ctx, events.DefaultNamespace.Changes()).Val() - put }
	await := func(n int64) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); queued() < n; time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d polls within 30 s, want %d", queued(), n)
			}
		}
	}
	await(1)
	server.Stop()
	server.Restart()
	stopFirst()
	defer poll()()
	await(repos)
	// Nothing is due any more: the next polls are in an hour.
	if n, next, err := registry.EnqueueDue(ctx, 1000, time.Hour); n != 0 || next < 50*time.Minute || err != nil || queued() != repos {
		t.Errorf("%d due, the next in %v, error %v; %d polls, want %d", n, next, err, queued(), repos)
	}
}
