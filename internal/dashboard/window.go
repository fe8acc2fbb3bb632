package dashboard

import (
	"encoding/json"
	"html/template"
	"math"
	"time"
)

const (
	step  = 5 * time.Second
	steps = 180 // of a window: 15 min
	span  = steps * step

	bins   = 128  // of delays, from 1 ms on
	growth = 1.15 // of a bin against the one before: 128 of them reach 16 h
)

// The outcomes that are counted apart.
const (
	outSynced = iota
	outUnchanged
	outFailed
	outOther // removed, moved, polled
	outcomes
)

// window counts results by when they came, for the last 15 min, in memory that does not grow. Delays are kept in
// bins, so that a percentile is right to some 7 %.
type window struct {
	ring [steps]bucket
	from time.Time // what came before is not counted
}

type bucket struct {
	at     int64 // begin, in seconds since 1970; 0 for none
	counts [outcomes]float64
	delays [bins]float32
}

// add counts a result that came at a moment, and stands for so many.
func (w *window) add(at time.Time, outcome int, delay time.Duration, weight float64) {
	begin := at.Truncate(step).Unix()
	b := &w.ring[begin/int64(step.Seconds())%steps]
	if begin < b.at { // later than the window is long
		return
	}
	if begin > b.at {
		*b = bucket{at: begin}
	}
	b.counts[outcome] += weight
	if delay >= 0 {
		b.delays[bin(delay)] += float32(weight)
	}
}

func bin(delay time.Duration) int {
	ms := float64(delay) / float64(time.Millisecond)
	if ms <= 1 {
		return 0
	}
	return min(bins-1, int(math.Log(ms)/math.Log(growth))+1)
}

// total is what came in the time before now, to a bucket.
func (w *window) total(now time.Time, within time.Duration) bucket {
	var sum bucket
	since := now.Add(-within).Unix()
	for i := range w.ring {
		if b := &w.ring[i]; b.at > since && b.at <= now.Unix() {
			sum.merge(b)
		}
	}
	return sum
}

func (b *bucket) merge(other *bucket) {
	for i := range b.counts {
		b.counts[i] += other.counts[i]
	}
	for i := range b.delays {
		b.delays[i] += other.delays[i]
	}
}

// perMinute is how many came a minute: in the buckets of the last minute that are over, or in what is known of them.
func (w *window) perMinute(now time.Time) float64 {
	until := now.Truncate(step)
	since := until.Add(-time.Minute)
	if w.from.After(since) {
		since = w.from
	}
	if !until.After(since) { // so much comes that less than a bucket is known
		until = now
	}
	n := 0.0
	for i := range w.ring {
		if b := &w.ring[i]; b.at >= since.Truncate(step).Unix() && b.at < until.Unix() {
			n += b.all()
		}
	}
	return n * float64(time.Minute) / float64(max(until.Sub(since), tailPause))
}

// all is how many came.
func (b *bucket) all() float64 {
	n := 0.0
	for _, count := range b.counts {
		n += count
	}
	return n
}

// quantile is the delay that a part q of all did not exceed; false when there is none.
func (b *bucket) quantile(q float64) (time.Duration, bool) {
	var all float64
	for _, n := range b.delays {
		all += float64(n)
	}
	if all == 0 {
		return 0, false
	}
	seen, rank := 0.0, q*all
	for i, n := range b.delays {
		if seen += float64(n); n > 0 && seen >= rank*(1-1e-6) {
			ms := math.Pow(growth, float64(i)-0.5) // the middle of its bin
			return time.Duration(max(1, ms) * float64(time.Millisecond)), true
		}
	}
	return 0, false
}

// series is what the charts draw: of each bucket with anything in it the begin in seconds, the counts, and the
// percentiles in ms.
type series struct {
	Step   int        `json:"step"`
	Span   int        `json:"span"`
	From   int64      `json:"from"` // nothing is known of what came before
	At     []int64    `json:"at"`
	Counts [][]int64  `json:"counts"` // by outcome
	Delays [][]*int64 `json:"delays"` // p50, p95, p99; null where nothing is known
}

var percentiles = []float64{0.5, 0.95, 0.99}

// series are the buckets that begin in [since, before).
func (w *window) series(since, before time.Time) series {
	s := series{Step: int(step.Seconds()), Span: int(span.Seconds()), From: w.from.Unix(), At: []int64{},
		Counts: make([][]int64, outcomes), Delays: make([][]*int64, len(percentiles))}
	first := max(0, since.Truncate(step).Unix())
	for at := first; at < before.Unix(); at += int64(step.Seconds()) {
		b := &w.ring[at/int64(step.Seconds())%steps]
		if b.at != at {
			continue
		}
		s.At = append(s.At, at)
		for i := range s.Counts {
			s.Counts[i] = append(s.Counts[i], int64(b.counts[i]+0.5))
		}
		for i, q := range percentiles {
			var ms *int64
			if d, ok := b.quantile(q); ok {
				n := d.Milliseconds()
				ms = &n
			}
			s.Delays[i] = append(s.Delays[i], ms)
		}
	}
	return s
}

// json has no text from anywhere in it, and so nothing to escape.
func (s series) json() template.HTML {
	text, _ := json.Marshal(s) // numbers alone
	return template.HTML(text)
}
