package rollup

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Point has the counts and latencies of one time step.
type Point struct {
	At     time.Time // its start
	Known  bool      // some worker recorded; if not, there is no data
	Counts [Outcomes]int64
	delays [Bins]int64
}

// Reader reads rollups. Both fields are required.
type Reader struct {
	Redis     redis.UniversalClient
	Namespace events.Namespace
}

// Read returns a point for each step from since, rounded down, to until. Steps are multiples of a minute. One that
// is no multiple of ten minutes has data of the last 6 hours only. It takes one round trip.
func (r Reader) Read(ctx context.Context, since, until time.Time, step time.Duration) ([]Point, error) {
	res := resolutions[0]
	if step%resolutions[1].step == 0 {
		res = resolutions[1]
	}
	since = since.UTC().Truncate(step)
	points := make([]Point, 0, int(until.Sub(since)/step)+1)
	for at := since; !at.After(until); at = at.Add(step) {
		points = append(points, Point{At: at})
	}
	pipe := r.Redis.Pipeline()
	var starts []time.Time
	var replies []*redis.MapStringStringCmd
	for start := since.Truncate(res.hash); !start.After(until); start = start.Add(res.hash) {
		hash, _ := res.key(r.Namespace, start)
		starts, replies = append(starts, start), append(replies, pipe.HGetAll(ctx, hash))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read rollups: %w", err)
	}
	for i, reply := range replies {
		for field, value := range reply.Val() {
			number, what, _ := strings.Cut(field, ":")
			bucket, err := strconv.Atoi(number)
			if err != nil {
				continue
			}
			at := starts[i].Add(time.Duration(bucket) * res.step)
			if n := int(at.Sub(since) / step); !at.Before(since) && n < len(points) {
				points[n].set(what, value)
			}
		}
	}
	return points, nil
}

// set adds the value of a field without its bucket. Fields of newer versions are ignored.
func (p *Point) set(what, value string) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || what == "" {
		return
	}
	if ":"+what == upField {
		p.Known = true
		return
	}
	i, err := strconv.Atoi(what[1:])
	switch kind := ":" + what[:1]; {
	case err != nil || i < 0:
	case kind == countField && i < int(Outcomes):
		p.Counts[i] += n
	case kind == delayField && i < Bins:
		p.delays[i] += n
	}
}

// All returns the number of changes.
func (p Point) All() (n int64) {
	for _, count := range p.Counts {
		n += count
	}
	return n
}

// Quantile returns the latency at quantile q in [0, 1], or false if no latency is known.
func (p Point) Quantile(q float64) (time.Duration, bool) {
	var all, cumulative int64
	for _, n := range p.delays {
		all += n
	}
	if all == 0 {
		return 0, false
	}
	rank := q * float64(all)
	for i, n := range p.delays {
		if cumulative += n; n > 0 && float64(cumulative) >= rank {
			ms := math.Pow(growth, float64(i)-0.5) // the middle of its bin
			return time.Duration(max(1, ms) * float64(time.Millisecond)), true
		}
	}
	return 0, false
}
