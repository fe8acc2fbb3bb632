package hot

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// Task is one event. Its number is its index among all tasks of a run.
type Task struct {
	Event int
	Repo  string
	Hot   bool
}

// done records that a worker has done the work of an event. Began and Ended are under the repository's lock; Settled is 0
// if the event was not settled.
type done struct {
	Event                 int
	Began, Ended, Settled int64
}

// parseDone reads a line of the worker protocol: <event> <began> <ended> <settled>.
func parseDone(line string) (done, error) {
	n, err := rig.ParseNumbers(line)
	if err != nil {
		return done{}, err
	}
	d := done{Event: int(n[0]), Began: n[1], Ended: n[2], Settled: n[3]}
	if d.Event < 0 || d.Began > d.Ended || d.Settled != 0 && d.Ended > d.Settled {
		return done{}, fmt.Errorf("line %q: want an event, and three times in order", line)
	}
	return d, nil
}

// Figures has the figures of one run.
type Figures struct {
	Cold    stats.Latency `json:"cold"`        // from queued until settled, of events for cold repositories
	Events  int           `json:"cold_events"` // settled
	Beside  int           `json:"beside"`      // settled events of the obstacle
	AllDone time.Duration `json:"all_done_ns"` // from the start to the last one settled

	// Only of lockstep serve.
	Left     int           `json:"left"`          // changes of the obstacle without a result at the end
	Attempts int           `json:"attempts"`      // failed attempts in results
	Timeouts int           `json:"lock_timeouts"` // lines of logs
	Requests int           `json:"requests"`      // to the obstacle's host
	Ping     time.Duration `json:"ping_ns"`       // the longest PING
	Peak     int64         `json:"peak_bytes"`    // memory of a worker

	// Each of these must be 0.
	Lost     int `json:"lost"`     // events never settled
	Doubled  int `json:"doubled"`  // events worked on more than once
	Overlaps int `json:"overlaps"` // times that work began on a repository while another worker was working on it
}

// record is what happened in a run.
type record struct {
	tasks []Task
	asked map[int]int64 // by event: when it was queued
	done  []done        // in any order
}

// judge computes the figures. An event that is not among the tasks counts as doubled.
func (r record) judge(start int64) Figures {
	var (
		f       Figures
		cold    []time.Duration
		times   = make(map[int]int, len(r.tasks))
		settled = make(map[int]bool, len(r.tasks))
		until   = map[string]int64{} // when the work on a repository ended
	)
	slices.SortFunc(r.done, func(a, b done) int { return cmp.Compare(a.Began, b.Began) })
	for _, d := range r.done {
		known := d.Event < len(r.tasks)
		if times[d.Event]++; times[d.Event] == 2 || !known {
			f.Doubled++
		}
		if !known {
			continue
		}
		task := r.tasks[d.Event]
		if end, worked := until[task.Repo]; worked && d.Began < end {
			f.Overlaps++
		}
		until[task.Repo] = max(until[task.Repo], d.Ended)
		if d.Settled == 0 || settled[d.Event] {
			continue
		}
		settled[d.Event] = true
		f.AllDone = max(f.AllDone, time.Duration(d.Settled-start))
		if task.Hot {
			f.Beside++
			continue
		}
		cold = append(cold, time.Duration(d.Settled-r.asked[d.Event]))
	}
	f.Lost, f.Events = len(r.tasks)-len(settled), len(cold)
	f.Cold = stats.NewLatency(cold)
	return f
}

// Row has a contestant's figures beside an obstacle. Each ratio compares a cold event's latency to that without one in the same
// round.
type Row struct {
	Beside   string                     `json:"beside"`
	P50      stats.Range[time.Duration] `json:"cold_p50_ns"`
	P99      stats.Range[time.Duration] `json:"cold_p99_ns"`
	RatioP50 stats.Range[float64]       `json:"ratio_p50"`
	RatioP99 stats.Range[float64]       `json:"ratio_p99"`
	ToFirst  float64                    `json:"p99_to_first"` // p99 relative to that of the first contestant, median of the rounds
	Rounds   []Figures                  `json:"rounds"`
}

// summarize computes the ranges over the rounds; calm and first are the rows without an obstacle and of the first contestant.
func (r *Row) summarize(calm, first Row) {
	p50, p99 := func(f Figures) time.Duration { return f.Cold.P50 }, func(f Figures) time.Duration { return f.Cold.P99 }
	r.P50, r.P99 = stats.RangeOf(r.Rounds, p50), stats.RangeOf(r.Rounds, p99)
	rounds := make([]int, len(r.Rounds))
	for i := range rounds {
		rounds[i] = i
	}
	ratio := func(to Row, of func(Figures) time.Duration) func(int) float64 {
		return func(i int) float64 { return stats.Ratio(of(r.Rounds[i]), of(to.Rounds[i])) }
	}
	r.RatioP50, r.RatioP99 = stats.RangeOf(rounds, ratio(calm, p50)), stats.RangeOf(rounds, ratio(calm, p99))
	r.ToFirst = stats.RangeOf(rounds, ratio(first, p99)).Median
}

// err returns an error if an event was lost or doubled, or if work overlapped.
func (r Row) err() error {
	if sum := r.total(); sum.Lost+sum.Doubled+sum.Overlaps > 0 {
		return fmt.Errorf("%d events lost, %d done twice, %d two at once on one repository", sum.Lost, sum.Doubled, sum.Overlaps)
	}
	return nil
}
