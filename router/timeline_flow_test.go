package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/router"
)

// diary is what a route's changes have told.
type diary struct {
	mu        sync.Mutex
	begun     int
	ended     int
	progress  []events.Progress
	timelines []router.Timeline
	work      []router.Work
}

func (d *diary) keep(c *router.Changes) {
	c.Begin = func(events.Job) (func(events.Progress), func()) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.begun++
		progress := func(p events.Progress) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.progress = append(d.progress, p)
		}
		return progress, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.ended++
		}
	}
	c.Timed = func(t router.Timeline) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.timelines = append(d.timelines, t)
	}
	c.Worked = func(w router.Work) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.work = append(d.work, w)
	}
}

// whole waits until so many changes are settled and no job is under way.
func (d *diary) whole(t *testing.T, n int) {
	t.Helper()
	stopWhen(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.timelines) >= n && d.begun == d.ended && len(d.work) == d.ended
	})
}

func timelineRoute(t *testing.T, d *diary, handler events.Handler) router.Route {
	t.Helper()
	client := startRedis(t)
	changes := &router.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: handler}
	d.keep(changes)
	publishChange(t, client, events.Change{ID: "c1"})
	return router.Route{
		Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client), Handler: changes.Handle,
		Locker: newLocker(t, client, time.Minute), Request: changes.Request, Slots: router.NewSlots(1),
		Dispose: router.Disposer{Failed: changes.Failed, GivenUp: changes.GivenUp, Log: quiet(), Retry: router.Retry{MaxAttempts: 3, Base: time.Millisecond}},
	}
}

func TestASettledChangeHasATimeline(t *testing.T) {
	var d diary
	tries := 0
	run(t, timelineRoute(t, &d, func(_ context.Context, job events.Job) (events.Outcome, error) {
		job.Progress(events.Progress{Phase: events.PhaseList})
		job.Progress(events.Progress{Phase: events.PhaseFetch, Done: 1000, Unit: "bytes"})
		if tries++; tries == 1 {
			return events.Outcome{}, events.Errorf(events.Retryable, events.ClassNetwork, "a hiccup")
		}
		job.Progress(events.Progress{Phase: events.PhaseBuild, Unit: "files"})
		result := job.Result(events.ResultSynced)
		result.After = "c1"
		return events.Outcome{Result: result}, nil
	}))
	d.whole(t, 1)
	tl := d.timelines[0]
	if tl.Outcome != "synced" || tl.Operation != "sync" || !tl.Again {
		t.Errorf("timeline %+v", tl)
	}
	last := tl.Received
	for i, at := range []time.Time{tl.Queued, tl.Delivered, tl.Leased, tl.Began, tl.Fetched, tl.Published, tl.Settled} {
		if at.IsZero() || at.Before(last) {
			t.Errorf("moment %d is %v, after %v", i, at, last)
		}
		last = at
	}
	sum, names := time.Duration(0), ""
	for stage, took := range tl.Stages {
		sum, names = sum+took, names+string(stage)+" "
	}
	// A process' moments are told apart by its monotonic clock, and from others' by the wall clock.
	if total, _ := tl.Total(); (sum-total).Abs() > time.Millisecond || names != "receive retry lease slot fetch publish settle " {
		t.Errorf("stages %s take %v, all of it %v", names, sum, total)
	}
	if len(d.progress) != 5 || d.begun != 2 {
		t.Errorf("%d jobs, progress %v", d.begun, d.progress)
	}
	if len(d.work) != 2 || events.ClassOf(d.work[0].Err) != events.ClassNetwork || d.work[1].Err != nil || d.work[1].Received != 1000 || d.work[1].Operation != "sync" {
		t.Errorf("work %+v", d.work)
	}
}

func TestAChangeThatIsGivenUpHasATimelineToo(t *testing.T) {
	for name, handler := range map[string]events.Handler{
		"for good": func(context.Context, events.Job) (events.Outcome, error) {
			return events.Outcome{}, events.Errorf(events.Permanent, events.ClassAuth, "no")
		},
		"panics": func(context.Context, events.Job) (events.Outcome, error) { panic("oh") },
		"each time": func(context.Context, events.Job) (events.Outcome, error) {
			return events.Outcome{}, errors.New("no")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d diary
			run(t, timelineRoute(t, &d, handler))
			d.whole(t, 1)
			if tl := d.timelines[0]; tl.Outcome != "failed" || tl.Delivered.IsZero() || !tl.Began.IsZero() || tl.Settled.IsZero() {
				t.Errorf("timeline %+v", tl)
			}
			for _, w := range d.work {
				if w.Err == nil {
					t.Error("an attempt that failed counts as work done")
				}
			}
		})
	}
}

func TestACoalescedChangeHasATimelineOfItsOwn(t *testing.T) {
	client := startRedis(t)
	const total = 20
	for n := range total {
		publishChange(t, client, events.Change{ID: fmt.Sprintf("c%d", n)})
	}
	var d diary
	route := coalescing(t, client, total-1, func(_ context.Context, job events.Job) (events.Outcome, error) {
		return events.Outcome{Result: job.Result(events.ResultSynced), Covers: func(_ context.Context, other events.Job) (events.Outcome, bool) {
			other.Progress(events.Progress{}) // never nil
			return events.Outcome{Result: other.Result(events.ResultSynced)}, true
		}}, nil
	}, d.keep)
	run(t, route)
	d.whole(t, total)
	coalesced := 0
	for _, tl := range d.timelines {
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
	if coalesced != total-1 || len(d.timelines) != total {
		t.Errorf("%d of %d timelines are of coalesced changes", coalesced, len(d.timelines))
	}
}
