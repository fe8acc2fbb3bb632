package hot

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// Task is one event.
type Task struct {
	Event int
	Repo  string
	Hot   bool
}

// makeTasks spreads events over repositories: half of them to the hot one, the others evenly over the rest, in a random order
// that is the same each time.
func makeTasks(events, repos int) []Task {
	tasks := make([]Task, events)
	for i := range tasks {
		if cold := i - events/2; cold >= 0 {
			tasks[i].Repo = fmt.Sprintf("bench/cold-%02d", cold%(repos-1)+1)
		} else {
			tasks[i].Repo, tasks[i].Hot = "bench/hot", true
		}
	}
	order := rand.New(rand.NewPCG(4, 2))
	order.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	for i := range tasks {
		tasks[i].Event = i
	}
	return tasks
}

// withoutHot returns the tasks of all other repositories, in the same order.
func withoutHot(tasks []Task) []Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t Task) bool { return t.Hot })
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

// Figures has the figures of one run, in which all tasks were queued at the start.
type Figures struct {
	Cold    stats.Latency `json:"cold"`        // from the start until settled, of events for the other repositories
	AllDone time.Duration `json:"all_done_ns"` // from the start to the last one settled

	// Each of these must be 0.
	Lost     int `json:"lost"`     // events never settled
	Doubled  int `json:"doubled"`  // events worked on more than once
	Overlaps int `json:"overlaps"` // times that work began on a repository while another worker was working on it
}

// judge computes the figures from what all workers did, in any order. An event that is not among the tasks counts as doubled.
func judge(tasks []Task, start int64, all []done) Figures {
	var (
		f       Figures
		cold    []time.Duration
		byEvent = make(map[int]Task, len(tasks))
		times   = make(map[int]int, len(tasks))
		settled = make(map[int]bool, len(tasks))
		until   = map[string]int64{} // when the work on a repository ended
	)
	for _, t := range tasks {
		byEvent[t.Event] = t
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b done) int { return cmp.Compare(a.Began, b.Began) })
	for _, d := range all {
		task, known := byEvent[d.Event]
		if times[d.Event]++; times[d.Event] == 2 || !known {
			f.Doubled++
		}
		if !known {
			continue
		}
		if end, worked := until[task.Repo]; worked && d.Began < end {
			f.Overlaps++
		}
		until[task.Repo] = max(until[task.Repo], d.Ended)
		if d.Settled == 0 || settled[d.Event] {
			continue
		}
		settled[d.Event] = true
		took := time.Duration(d.Settled - start)
		f.AllDone = max(f.AllDone, took)
		if !task.Hot {
			cold = append(cold, took)
		}
	}
	f.Lost = len(tasks) - len(settled)
	f.Cold = stats.NewLatency(cold)
	return f
}

// Round has the figures of one contestant with the hot repository and without it.
type Round struct {
	Hot  Figures `json:"hot"`
	Calm Figures `json:"calm"`
}

// Summary summarizes a contestant's rounds. Each ratio compares a cold event's latency with the hot repository to that
// without, in the same round.
type Summary struct {
	P50         stats.Range[time.Duration] `json:"cold_p50_ns"`
	P99         stats.Range[time.Duration] `json:"cold_p99_ns"`
	AllDone     stats.Range[time.Duration] `json:"all_done_ns"`
	CalmP50     stats.Range[time.Duration] `json:"calm_p50_ns"`
	CalmP99     stats.Range[time.Duration] `json:"calm_p99_ns"`
	CalmAllDone stats.Range[time.Duration] `json:"calm_all_done_ns"`
	RatioP50    stats.Range[float64]       `json:"ratio_p50"`
	RatioP99    stats.Range[float64]       `json:"ratio_p99"`

	Lost     int `json:"lost"` // in all rounds, with and without the hot repository
	Doubled  int `json:"doubled"`
	Overlaps int `json:"overlaps"`
}

// summarize returns the range of each figure over all rounds.
func summarize(rounds []Round) Summary {
	s := Summary{
		P50:         stats.RangeOf(rounds, func(r Round) time.Duration { return r.Hot.Cold.P50 }),
		P99:         stats.RangeOf(rounds, func(r Round) time.Duration { return r.Hot.Cold.P99 }),
		AllDone:     stats.RangeOf(rounds, func(r Round) time.Duration { return r.Hot.AllDone }),
		CalmP50:     stats.RangeOf(rounds, func(r Round) time.Duration { return r.Calm.Cold.P50 }),
		CalmP99:     stats.RangeOf(rounds, func(r Round) time.Duration { return r.Calm.Cold.P99 }),
		CalmAllDone: stats.RangeOf(rounds, func(r Round) time.Duration { return r.Calm.AllDone }),
		RatioP50:    stats.RangeOf(rounds, func(r Round) float64 { return stats.Ratio(r.Hot.Cold.P50, r.Calm.Cold.P50) }),
		RatioP99:    stats.RangeOf(rounds, func(r Round) float64 { return stats.Ratio(r.Hot.Cold.P99, r.Calm.Cold.P99) }),
	}
	for _, r := range rounds {
		for _, f := range []Figures{r.Hot, r.Calm} {
			s.Lost += f.Lost
			s.Doubled += f.Doubled
			s.Overlaps += f.Overlaps
		}
	}
	return s
}

// Err returns an error if an event was lost or doubled, or if work overlapped.
func (s Summary) Err() error {
	return rig.Faults(rig.Fault{What: "events lost", Count: s.Lost}, rig.Fault{What: "events done twice", Count: s.Doubled},
		rig.Fault{What: "two at once on one repository", Count: s.Overlaps})
}
