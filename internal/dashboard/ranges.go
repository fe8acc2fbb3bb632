package dashboard

import (
	"context"
	"html/template"
	"net/url"
	"sync"
	"time"

	"lockstep/internal/rollup"
)

// timeRange is a range of time that the overview's charts can show.
type timeRange struct {
	Name string // value of the query parameter
	Text string
	Per  string // a step, in words
	span time.Duration
	step time.Duration
}

// ranges has the ranges beyond the default, which is that of the [tail]. Steps are those of [rollup.Reader.Read].
var ranges = []timeRange{
	{"1h", "1 hour", "minute", time.Hour, time.Minute},
	{"6h", "6 hours", "5 minutes", 6 * time.Hour, 5 * time.Minute},
	{"24h", "24 hours", "10 minutes", 24 * time.Hour, 10 * time.Minute},
	{"7d", "7 days", "hour", 7 * 24 * time.Hour, time.Hour},
}

// Layout returns the format of times in the table.
func (r timeRange) Layout() string {
	if r.span >= 24*time.Hour {
		return "2006-01-02 15:04"
	}
	return "15:04"
}

// rangeOf returns the range of a query, and false for the default.
func rangeOf(q url.Values) (timeRange, bool) {
	for _, r := range ranges {
		if r.Name == q.Get("range") {
			return r, true
		}
	}
	return timeRange{Name: "15m", Text: "15 minutes", Per: "5 s", span: span, step: step}, false
}

// Rollups reads counts and latencies of the past. [rollup.Reader] implements it.
type Rollups interface {
	Read(ctx context.Context, since, until time.Time, step time.Duration) ([]rollup.Point, error)
}

// rollupsKept is how long points are reused: workers record every 10 s.
const rollupsKept = 5 * time.Second

// sharedRollups reuses points. It is safe for concurrent use.
type sharedRollups struct {
	rollups Rollups

	kept time.Duration

	mu   sync.Mutex
	last map[string]readPoints // by range
}

type readPoints struct {
	points []rollup.Point
	at     time.Time
}

func (s *sharedRollups) read(ctx context.Context, r timeRange, now time.Time) ([]rollup.Point, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[r.Name]; ok && time.Since(last.at) < s.kept {
		return last.points, nil
	}
	points, err := s.rollups.Read(ctx, now.Add(-r.span).Truncate(r.step).Add(r.step), now, r.step)
	if err == nil {
		s.last[r.Name] = readPoints{points, time.Now()}
	}
	return points, err
}

// setRange replaces the charts and their table by those of a longer range. Times without data stay empty.
func (o *overview) setRange(points []rollup.Point) {
	o.Minutes = nil
	s := series{Step: int(o.Range.step.Seconds()), Span: int(o.Range.span.Seconds()), Gaps: true, At: []int64{},
		Counts: make([][]int64, outcomes), Delays: make([][]*int64, len(percentiles))}
	for _, p := range points {
		if !p.Known {
			continue
		}
		s.add(p)
		if p.All() > 0 {
			o.Minutes = append([]minute{minuteOf(p)}, o.Minutes...)
		}
	}
	o.Charts, o.Edge, o.Unrecorded = s.json(), template.HTML("null"), len(s.At) == 0
}

// add adds a point. The outcomes of rollups have the order of ours.
func (s *series) add(p rollup.Point) {
	s.At = append(s.At, p.At.Unix())
	for i := range s.Counts {
		s.Counts[i] = append(s.Counts[i], p.Counts[i])
	}
	for i, q := range percentiles {
		var ms *int64
		if d, ok := p.Quantile(q); ok {
			n := d.Milliseconds()
			ms = &n
		}
		s.Delays[i] = append(s.Delays[i], ms)
	}
}

func minuteOf(p rollup.Point) minute {
	m := minute{At: p.At}
	copy(m.Counts[:], p.Counts[:])
	m.P50, m.Known = p.Quantile(0.5)
	m.P95, _ = p.Quantile(0.95)
	m.P99, _ = p.Quantile(0.99)
	return m
}
