package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/router"
)

// diary records the events of a route's changes.
type diary struct {
	mu    sync.Mutex
	kinds map[handlers.Kind][]handlers.Event
}

func (d *diary) record(e handlers.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kinds == nil {
		d.kinds = map[handlers.Kind][]handlers.Event{}
	}
	d.kinds[e.Kind] = append(d.kinds[e.Kind], e)
}

// timelines waits until n changes are settled and no attempt is in progress.
func (d *diary) timelines(t *testing.T, n int) (all []handlers.Timeline) {
	t.Helper()
	stopWhen(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.kinds[handlers.Ended]) >= n && len(d.kinds[handlers.Began]) == len(d.kinds[handlers.Attempted])
	})
	for _, e := range d.kinds[handlers.Ended] {
		all = append(all, e.Timeline)
	}
	return all
}

func timelineRoute(t *testing.T, d *diary, handler handlers.Handler) router.Route {
	t.Helper()
	client := startRedis(t)
	changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: handler, Observe: d.record}
	publishChange(t, client, events.Change{ID: "c1"})
	return router.Route{
		Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client), Handler: changes.Handle,
		Locker: newLocker(t, client, time.Minute), Request: changes.Request,
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 3, Base: time.Millisecond}),
	}
}

func TestTimelineOfSettledChange(t *testing.T) {
	t.Parallel()
	var d diary
	tries, slotWait := 0, 5*time.Millisecond
	run(t, timelineRoute(t, &d, func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		job.Progress(events.Progress{Phase: events.PhaseList})
		job.Progress(events.Progress{Phase: events.PhaseFetch, Done: 1000, Unit: "bytes"})
		if tries++; tries == 1 {
			return handlers.Outcome{}, events.Errorf(events.Retryable, events.ClassNetwork, "a hiccup")
		}
		job.Progress(events.Progress{Phase: events.PhaseWait})
		time.Sleep(slotWait)
		job.Progress(events.Progress{Phase: events.PhaseFetch, Unit: "objects"})
		job.Progress(events.Progress{Phase: events.PhaseWait})
		time.Sleep(slotWait)
		job.Progress(events.Progress{Phase: events.PhaseBuild, Unit: "files"})
		result := job.Result(events.ResultSynced)
		result.After = "c1"
		return handlers.Outcome{Result: result}, nil
	}))
	tl := d.timelines(t, 1)[0]
	if tl.Outcome != "synced" || tl.Operation != "sync" || !tl.Again {
		t.Errorf("timeline %+v", tl)
	}
	last := tl.Received
	for i, at := range []time.Time{tl.Queued, tl.Delivered, tl.Leased, tl.Began, tl.Fetched, tl.Published, tl.Settled} {
		if at.IsZero() || at.Before(last) {
			t.Errorf("time %d is %v, before %v", i, at, last)
		}
		last = at
	}
	sum, names := time.Duration(0), ""
	for stage, took := range tl.Stages {
		sum, names = sum+took, names+string(stage)+" "
		if stage == handlers.StageSlot && took < 2*slotWait {
			t.Errorf("waited %v for a slot, want at least twice %v", took, slotWait)
		}
	}
	// Times of one process are compared by the monotonic clock, others by the wall clock.
	if total, _ := tl.Total(); (sum-total).Abs() > time.Millisecond || names != "receive retry lease slot fetch publish settle " {
		t.Errorf("stages %s take %v, all of it %v", names, sum, total)
	}
	if progress, began := d.kinds[handlers.Progressed], d.kinds[handlers.Began]; len(progress) != 8 || len(began) != 2 || progress[7].Job != began[1].Job {
		t.Errorf("%d attempts began, progress %v", len(began), progress)
	}
	attempts := d.kinds[handlers.Attempted]
	if len(attempts) != 2 || events.ClassOf(attempts[0].Err) != events.ClassNetwork || attempts[1].Err != nil || attempts[1].Received != 1000 {
		t.Errorf("attempts %+v", attempts)
	}
}

func TestTimelineOfFailedChange(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]handlers.Handler{
		"for good": func(context.Context, handlers.Job) (handlers.Outcome, error) {
			return handlers.Outcome{}, events.Errorf(events.Permanent, events.ClassAuth, "no")
		},
		"panics": func(context.Context, handlers.Job) (handlers.Outcome, error) { panic("oh") },
		"each time": func(context.Context, handlers.Job) (handlers.Outcome, error) {
			return handlers.Outcome{}, errors.New("no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d diary
			run(t, timelineRoute(t, &d, handler))
			if tl := d.timelines(t, 1)[0]; tl.Outcome != "failed" || tl.Delivered.IsZero() || !tl.Began.IsZero() || tl.Settled.IsZero() {
				t.Errorf("timeline %+v", tl)
			}
			for _, e := range d.kinds[handlers.Attempted] {
				if e.Err == nil {
					t.Error("a failed attempt has no error")
				}
			}
		})
	}
}

func TestTimelineOfCoalescedChange(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	const total = 20
	for n := range total {
		publishChange(t, client, events.Change{ID: fmt.Sprintf("c%d", n)})
	}
	var d diary
	route := coalescing(t, client, total-1, func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		return handlers.Outcome{Result: job.Result(events.ResultSynced), Covers: func(_ context.Context, other handlers.Job) (handlers.Outcome, bool) {
			other.Progress(events.Progress{}) // never nil
			return handlers.Outcome{Result: other.Result(events.ResultSynced)}, true
		}}, nil
	}, d.record)
	run(t, route)
	timelines := d.timelines(t, total)
	coalesced := 0
	for _, tl := range timelines {
		if tl.Outcome != "coalesced" {
			continue
		}
		coalesced++
		sum := time.Duration(0)
		for _, took := range tl.Stages {
			sum += took
		}
		if all, ok := tl.Total(); !ok || sum != all || !tl.Delivered.IsZero() {
			t.Errorf("timeline %+v", tl)
		}
	}
	if coalesced != total-1 || len(timelines) != total {
		t.Errorf("%d of %d timelines are coalesced", coalesced, len(timelines))
	}
}
