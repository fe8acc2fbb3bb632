package dashboard

import (
	"encoding/json"
	"html/template"
	"math"
	"time"
)

const (
	step  = 5 * time.Second
	steps = 180 // buckets in a window: 15 min
	span  = steps * step

	bins   = 128  // latency bins, from 1 ms to 16 h
	growth = 1.15 // ratio of the bounds of adjacent bins
)

// Outcomes that are counted separately.
const (
	outSynced = iota
	outUnchanged
	outFailed
	outOther // removed, moved, polled
	outcomes
)

// window counts the results of the last 15 min by time of arrival, in constant memory. Latencies are counted in
// exponential bins, so percentiles are accurate to about 7 %.
type window struct {
	ring [steps]bucket
	from time.Time // earlier results are unknown
}

// bucket holds the counts of one step.
type bucket struct {
	at     int64 // start in seconds since 1970; 0 if the bucket is unused
	counts [outcomes]int64
	delays [bins]uint32
}

// add counts a result. A negative delay means that its latency is unknown.
func (w *window) add(at time.Time, outcome int, delay time.Duration) {
	start := at.Truncate(step).Unix()
	b := &w.ring[start/int64(step.Seconds())%steps]
	if start < b.at { // older than the window
		return
	}
	if start > b.at {
		*b = bucket{at: start}
	}
	b.counts[outcome]++
	if delay >= 0 {
		b.delays[bin(delay)]++
	}
}

func bin(delay time.Duration) int {
	ms := float64(delay) / float64(time.Millisecond)
	if ms <= 1 {
		return 0
	}
	return min(bins-1, int(math.Log(ms)/math.Log(growth))+1)
}

// total returns the sum of the buckets that start within the given time before now.
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

// perMinute returns the rate of results over the last minute's completed buckets, or over the known part of them.
func (w *window) perMinute(now time.Time) float64 {
	until := now.Truncate(step)
	since := until.Add(-time.Minute)
	if w.from.After(since) {
		since = w.from
	}
	if !until.After(since) { // less than one bucket is known because results arrive so fast
		until = now
	}
	n := int64(0)
	for i := range w.ring {
		if b := &w.ring[i]; b.at >= since.Truncate(step).Unix() && b.at < until.Unix() {
			n += b.all()
		}
	}
	return float64(n) * float64(time.Minute) / float64(max(until.Sub(since), tailPause))
}

func (b *bucket) all() (n int64) {
	for _, count := range b.counts {
		n += count
	}
	return n
}

// quantile returns the latency at quantile q in [0, 1], or false if no latency is known.
func (b *bucket) quantile(q float64) (time.Duration, bool) {
	all := int64(0)
	for _, n := range b.delays {
		all += int64(n)
	}
	if all == 0 {
		return 0, false
	}
	cumulative, rank := int64(0), q*float64(all)
	for i, n := range b.delays {
		if cumulative += int64(n); n > 0 && float64(cumulative) >= rank*(1-1e-6) {
			ms := math.Pow(growth, float64(i)-0.5) // the middle of its bin
			return time.Duration(max(1, ms) * float64(time.Millisecond)), true
		}
	}
	return 0, false
}

// series is the data of the charts: start time, counts and latency percentiles in ms of each non-empty bucket.
type series struct {
	Step   int        `json:"step"`
	Span   int        `json:"span"`
	From   int64      `json:"from"` // earlier results are unknown
	At     []int64    `json:"at"`
	Counts [][]int64  `json:"counts"` // by outcome
	Delays [][]*int64 `json:"delays"` // p50, p95, p99; null if unknown
}

var percentiles = []float64{0.5, 0.95, 0.99}

// series returns the non-empty buckets that start in [since, before).
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
			s.Counts[i] = append(s.Counts[i], b.counts[i])
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

// json returns the series as JSON. It consists of numbers only, so it needs no escaping.
func (s series) json() template.HTML {
	text, _ := json.Marshal(s)
	return template.HTML(text)
}
