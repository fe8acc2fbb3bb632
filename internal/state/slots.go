package state

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LoweredSlots is a worker that uses fewer slots than configured, because of memory or CPU pressure.
type LoweredSlots struct {
	Worker string `json:"worker"`
	Slots  int    `json:"slots"`
	Of     int    `json:"of"` // configured
}

// slotsField precedes the name of a worker in the hash of activities. Workers of earlier versions ignore such a report: it is no list of
// jobs.
const slotsField = "slots:"

// RunSlots reports the worker's slots every 2 s while they are fewer than configured, until ctx is done. Otherwise it does not call Redis, except
// to delete the last report. It does not retry failed writes.
func (r *Reporter) RunSlots(ctx context.Context, slots func() int, configured int) {
	tick := time.NewTicker(reportHeartbeat)
	defer tick.Stop()
	stored := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-tick.C:
		}
		n := slots()
		if n >= configured {
			stored = stored && !r.write(ctx, "delete", slotsField+r.name)
			continue
		}
		document, err := json.Marshal(LoweredSlots{Worker: r.name, Slots: n, Of: configured})
		if err != nil { // cannot happen: it contains only strings and numbers
			r.log.DebugContext(ctx, "slots report not encoded", "error", err)
			continue
		}
		stored = true // a failed write may have been executed
		r.write(ctx, "set", slotsField+r.name, document, reportExpiry.Milliseconds())
	}
	if stored {
		r.write(context.WithoutCancel(ctx), "delete", slotsField+r.name)
	}
}

// LoweredSlots returns the workers with fewer slots than configured, by name. Workers that have not reported for 5 s are omitted.
func (s *Store) LoweredSlots(ctx context.Context) ([]LoweredSlots, error) {
	now, reports, err := s.reports(ctx)
	if err != nil {
		return nil, err
	}
	var all []LoweredSlots
	for field, value := range reports {
		if !strings.HasPrefix(field, slotsField) {
			continue
		}
		head, document, _ := strings.Cut(value, " ")
		ms, err := strconv.ParseInt(head, 10, 64)
		var one LoweredSlots
		if err == nil && now.Sub(time.UnixMilli(ms)).Abs() <= reportFresh && json.Unmarshal([]byte(document), &one) == nil {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b LoweredSlots) int { return cmp.Compare(a.Worker, b.Worker) })
	return all, nil
}

// reports returns the reports of all workers by their field, and Redis' time.
func (s *Store) reports(ctx context.Context) (now time.Time, reports map[string]string, err error) {
	reply, err := activityScript.Run(ctx, s.redis, []string{s.namespace.Working()}, "list", reportExpiry.Milliseconds()).Slice()
	if err != nil {
		return time.Time{}, nil, fmt.Errorf("read the workers' activities: %w", err)
	}
	if len(reply) == 0 {
		return time.Time{}, nil, nil
	}
	ms, _ := reply[0].(int64)
	reports = map[string]string{}
	for pair := range slices.Chunk(reply[1:], 2) {
		field, _ := pair[0].(string)
		value, _ := pair[len(pair)-1].(string)
		reports[field] = value
	}
	return time.UnixMilli(ms).UTC(), reports, nil
}
