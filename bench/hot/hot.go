package hot

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/stats"
)

// Task is one event of the run with a hot repository.
type Task struct {
	Event int
	Repo  string
	Hot   bool
}

// HotTasks deals events out over repositories: half of them to one, the hot one, the others evenly
// over the rest. They come in a random order that is the same each time.
func HotTasks(events, repos int) []Task {
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

// Cold leaves the hot events out, and everything else as it is.
func Cold(tasks []Task) []Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t Task) bool { return t.Hot })
}

// Done is one time that the work of an event was done: from the moment it began under the lock of
// its repository, to its end, to the moment the event was settled. Settled is 0 when it was not.
type Done struct {
	Event                 int
	Began, Ended, Settled int64
}

// ParseDone reads a line of the worker protocol: <event> <began> <ended> <settled>.
func ParseDone(line string) (Done, error) {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return Done{}, fmt.Errorf("done %q has %d fields; want 4", line, len(fields))
	}
	var n [4]int64
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return Done{}, fmt.Errorf("done %q: %w", line, err)
		}
	}
	d := Done{Event: int(n[0]), Began: n[1], Ended: n[2], Settled: n[3]}
	if d.Event < 0 || d.Began > d.Ended || d.Settled != 0 && d.Ended > d.Settled {
		return Done{}, fmt.Errorf("done %q: want an event, and three moments in order", line)
	}
	return d, nil
}

// HotFigures are what became of tasks that were all queued at the start.
type HotFigures struct {
	Cold    stats.Latency `json:"cold"`        // from the start to settled, of events not to the hot repository
	AllDone time.Duration `json:"all_done_ns"` // from the start to the last one settled

	// None of these may be.
	Lost     int `json:"lost"`     // events never settled
	Doubled  int `json:"doubled"`  // events whose work was done more than once
	Overlaps int `json:"overlaps"` // times that work began on a repository that was being worked on
}

// JudgeHot reads the figures off what all workers did, in any order. An event that is none of the
// tasks counts as doubled: it is of no use to anybody.
func JudgeHot(tasks []Task, start int64, done []Done) HotFigures {
	var (
		f       HotFigures
		cold    []time.Duration
		byEvent = make(map[int]Task, len(tasks))
		times   = make(map[int]int, len(tasks))
		settled = make(map[int]bool, len(tasks))
		until   = map[string]int64{} // when the work on a repository has ended
	)
	for _, t := range tasks {
		byEvent[t.Event] = t
	}
	done = slices.Clone(done)
	slices.SortFunc(done, func(a, b Done) int { return cmp.Compare(a.Began, b.Began) })
	for _, d := range done {
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

// HotRound is one contestant's turn: with the hot repository, and without.
type HotRound struct {
	Hot  HotFigures `json:"hot"`
	Calm HotFigures `json:"calm"`
}

// HotSummary is what all rounds of one contestant showed. The ratios are those of a cold event's
// latency with the hot repository to the one without, in the same round.
type HotSummary struct {
	P50         stats.Range[time.Duration] `json:"cold_p50_ns"`
	P99         stats.Range[time.Duration] `json:"cold_p99_ns"`
	AllDone     stats.Range[time.Duration] `json:"all_done_ns"`
	CalmP50     stats.Range[time.Duration] `json:"calm_p50_ns"`
	CalmP99     stats.Range[time.Duration] `json:"calm_p99_ns"`
	CalmAllDone stats.Range[time.Duration] `json:"calm_all_done_ns"`
	RatioP50    stats.Range[float64]       `json:"ratio_p50"`
	RatioP99    stats.Range[float64]       `json:"ratio_p99"`

	Lost     int `json:"lost"` // in all rounds, with the hot repository and without; and so on
	Doubled  int `json:"doubled"`
	Overlaps int `json:"overlaps"`
}

// SummarizeHot takes the rounds together.
func SummarizeHot(rounds []HotRound) HotSummary {
	s := HotSummary{
		P50:         stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Hot.Cold.P50 }),
		P99:         stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Hot.Cold.P99 }),
		AllDone:     stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Hot.AllDone }),
		CalmP50:     stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Calm.Cold.P50 }),
		CalmP99:     stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Calm.Cold.P99 }),
		CalmAllDone: stats.RangeOf(rounds, func(r HotRound) time.Duration { return r.Calm.AllDone }),
		RatioP50:    stats.RangeOf(rounds, func(r HotRound) float64 { return stats.Ratio(r.Hot.Cold.P50, r.Calm.Cold.P50) }),
		RatioP99:    stats.RangeOf(rounds, func(r HotRound) float64 { return stats.Ratio(r.Hot.Cold.P99, r.Calm.Cold.P99) }),
	}
	for _, r := range rounds {
		for _, f := range []HotFigures{r.Hot, r.Calm} {
			s.Lost += f.Lost
			s.Doubled += f.Doubled
			s.Overlaps += f.Overlaps
		}
	}
	return s
}

// Err says what went wrong that never may. It is nil when nothing did.
func (s HotSummary) Err() error {
	var errs []error
	count := func(n int, what string) {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d", what, n))
		}
	}
	count(s.Lost, "events lost")
	count(s.Doubled, "events done twice")
	count(s.Overlaps, "two at once on one repository")
	return errors.Join(errs...)
}
