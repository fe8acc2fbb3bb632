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
	reportTick  = 500 * time.Millisecond // at most one write in that time, and none of work that lasts less
	reportBeat  = 2 * time.Second        // the same is said again after that long, as a sign of life
	reportedMax = 100                    // jobs that are told of, the longest first
	reportTime  = time.Second            // for one write
)

// Reporter tells everybody what this process works on. Work that is over within a tick of half a second costs
// no word to Redis, and when there is no other, nothing is ever said.
type Reporter struct {
	redis     redis.Scripter
	key, name string
	log       *slog.Logger
	begun     chan struct{} // has a token when there may be work that Run does not know of

	mu   sync.Mutex
	jobs map[*events.Job]*activity
}

// activity is one job under way.
type activity struct {
	job      events.Job
	began    time.Time
	progress events.Progress
}

// NewReporter makes the Reporter of a worker.
func NewReporter(client redis.Scripter, namespace events.Namespace, worker string, log *slog.Logger) *Reporter {
	return &Reporter{
		redis: client, key: namespace.Working(), name: worker, log: log,
		begun: make(chan struct{}, 1), jobs: make(map[*events.Job]*activity),
	}
}

// Begin adds a job to the work in progress, until End is called with the same pointer. It does not call Redis.
func (r *Reporter) Begin(job *events.Job) {
	r.mu.Lock()
	r.jobs[job] = &activity{job: *job, began: time.Now()}
	r.mu.Unlock()
	select {
	case r.begun <- struct{}{}:
	default:
	}
}

// Progress sets how far a job is.
func (r *Reporter) Progress(job *events.Job, p events.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.jobs[job]; one != nil {
		one.progress = p
	}
}

// End removes a job from the work in progress.
func (r *Reporter) End(job *events.Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.jobs, job)
}

// Run says what there is to say until ctx is done, and takes it back then. What Redis does not hear is not
// said again: it is of use only while it is true.
func (r *Reporter) Run(ctx context.Context) {
	var last report
	for ctx.Err() == nil {
		if !last.standing && !r.any() {
			select {
			case <-ctx.Done():
			case <-r.begun:
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(reportTick):
			r.tick(ctx, &last)
		}
	}
	if last.standing {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTime)
		defer cancel()
		r.write(ctx, "done", r.name)
	}
}

// report is what Run has last said.
type report struct {
	standing bool // and not taken back
	at       time.Time
	jobs     []said // without how long they take
}

// tick says what has changed, or is to be repeated.
func (r *Reporter) tick(ctx context.Context, last *report) {
	now := time.Now()
	jobs, took := r.long(now)
	switch {
	case len(jobs) == 0 && !last.standing:
		return
	case len(jobs) == 0:
		if r.write(ctx, "done", r.name) {
			*last = report{}
		}
		return
	case slices.Equal(jobs, last.jobs) && now.Sub(last.at) < reportBeat:
		return
	}
	last.standing, last.at, last.jobs = true, now, slices.Clone(jobs) // it may be there even when no answer comes
	for i := range jobs {
		jobs[i].TookMS = took[i].Milliseconds()
	}
	document, err := json.Marshal(jobs)
	if err != nil { // cannot be: there are texts and numbers in it
		r.log.DebugContext(ctx, "what is worked on cannot be told", "error", err)
		return
	}
	r.write(ctx, "say", r.name, document, workingForget.Milliseconds())
}

// any reports whether anything is worked on.
func (r *Reporter) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.jobs) > 0
}

// long returns the jobs that have lasted a tick, the longest first, and for how long.
func (r *Reporter) long(now time.Time) (jobs []said, took []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*activity, 0, len(r.jobs))
	for _, one := range r.jobs {
		if now.Sub(one.began) >= reportTick {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(x, y *activity) int {
		return cmp.Or(x.began.Compare(y.began), cmp.Compare(x.job.Entry, y.job.Entry))
	})
	for _, one := range all[:min(len(all), reportedMax)] {
		jobs, took = append(jobs, one.said()), append(took, now.Sub(one.began))
	}
	return jobs, took
}

func (one *activity) said() said {
	change := one.job.Change
	return said{
		Repo: change.Repo.String(), Job: change.ID, Operation: change.Type.Operation(), App: change.App,
		Ref: change.Ref.String(), Fence: one.job.Fence, Progress: one.progress,
	}
}

func (r *Reporter) write(ctx context.Context, args ...any) bool {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	err := activityScript.Run(ctx, r.redis, []string{r.key}, args...).Err()
	if err != nil && !errors.Is(err, redis.Nil) { // that is what a script returns which returns nothing
		r.log.DebugContext(ctx, "what is worked on was not told", "error", fmt.Errorf("write %s: %w", r.key, err))
		return false
	}
	return true
}
