package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	reportInterval  = 500 * time.Millisecond // between two writes; shorter work is not reported
	reportHeartbeat = 2 * time.Second        // between two writes of an unchanged report
	maxReportedJobs = 100
	reportTimeout   = time.Second
)

// Reporter publishes this worker's work in progress in Redis. Jobs that take less than half a second cause no writes.
// Its methods are safe for concurrent use.
type Reporter struct {
	redis     redis.Scripter
	key, name string
	log       *slog.Logger
	wake      chan struct{} // wakes Run when a job begins

	mu   sync.Mutex
	jobs map[any]*activity
}

// activity is a job in progress.
type activity struct {
	jobReport
	start time.Time
}

// NewReporter returns the Reporter of the named worker.
func NewReporter(client redis.Scripter, namespace events.Namespace, worker string, log *slog.Logger) *Reporter {
	return &Reporter{
		redis: client, key: namespace.Working(), name: worker, log: log,
		wake: make(chan struct{}, 1), jobs: make(map[any]*activity),
	}
}

// Begin adds a job, identified by a pointer, to the work in progress until End. It does not call Redis.
func (r *Reporter) Begin(job any, change events.Change, fence uint64) {
	report := jobReport{Activity: Activity{
		Repo: change.Repo.String(), Job: change.ID, Operation: change.Type.Operation(), App: change.App,
		Ref: change.Ref.String(), Fence: fence,
	}}
	r.mu.Lock()
	r.jobs[job] = &activity{report, time.Now()}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Progress records the progress of a job.
func (r *Reporter) Progress(job any, p events.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.jobs[job]; one != nil {
		one.Progress = p
	}
}

// End removes a job from the work in progress.
func (r *Reporter) End(job any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.jobs, job)
}

// Run publishes reports until ctx is done, and then deletes the worker's report. It does not retry failed writes,
// because the next report replaces them.
func (r *Reporter) Run(ctx context.Context) {
	var last report
	for ctx.Err() == nil {
		if !last.stored && !r.busy() {
			select {
			case <-ctx.Done():
			case <-r.wake:
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(reportInterval):
			r.update(ctx, &last)
		}
	}
	if last.stored {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
		defer cancel()
		r.write(ctx, "delete", r.name)
	}
}

// report is the last report written by Run.
type report struct {
	stored bool // Redis may contain it
	at     time.Time
	jobs   []jobReport // without TookMS
}

// update writes a report if it has changed or a heartbeat is due.
func (r *Reporter) update(ctx context.Context, last *report) {
	now := time.Now()
	jobs, elapsed := r.longJobs(now)
	switch {
	case len(jobs) == 0 && !last.stored:
		return
	case len(jobs) == 0:
		if r.write(ctx, "delete", r.name) {
			*last = report{}
		}
		return
	case slices.Equal(jobs, last.jobs) && now.Sub(last.at) < reportHeartbeat:
		return
	}
	last.stored, last.at, last.jobs = true, now, slices.Clone(jobs) // a failed write may have been executed
	for i := range jobs {
		jobs[i].TookMS = elapsed[i].Milliseconds()
	}
	document, err := json.Marshal(jobs)
	if err != nil { // cannot happen: a jobReport contains only strings and numbers
		r.log.DebugContext(ctx, "activity report not encoded", "error", err)
		return
	}
	r.write(ctx, "set", r.name, document, reportExpiry.Milliseconds())
}

func (r *Reporter) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.jobs) > 0
}

// longJobs returns the jobs that have taken at least reportInterval, longest first, and their elapsed times.
func (r *Reporter) longJobs(now time.Time) (jobs []jobReport, elapsed []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*activity, 0, len(r.jobs))
	for _, one := range r.jobs {
		if now.Sub(one.start) >= reportInterval {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(x, y *activity) int {
		return cmp.Or(x.start.Compare(y.start), cmp.Compare(x.Job, y.Job))
	})
	for _, a := range all[:min(len(all), maxReportedJobs)] {
		jobs, elapsed = append(jobs, a.jobReport), append(elapsed, now.Sub(a.start))
	}
	return jobs, elapsed
}

func (r *Reporter) write(ctx context.Context, args ...any) bool {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := activityScript.Run(ctx, r.redis, []string{r.key}, args...).Err()
	if err != nil && !errors.Is(err, redis.Nil) { // the script returns no value
		r.log.DebugContext(ctx, "activity report not written", "error", fmt.Errorf("write %s: %w", r.key, err))
		return false
	}
	return true
}
