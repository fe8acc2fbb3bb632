package state

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Activity is a change that a worker is processing, under its lease.
type Activity struct {
	Repo      string    `json:"repo"`
	Job       string    `json:"job"` // ID of the change
	Worker    string    `json:"worker,omitempty"`
	Operation string    `json:"operation"` // sync, remove, move or poll
	App       string    `json:"app,omitempty"`
	Ref       string    `json:"ref,omitempty"`
	Since     time.Time `json:"since,omitzero"` // start of the work, by Redis' clock
	Fence     uint64    `json:"fence"`
	events.Progress
	At time.Time `json:"at,omitzero"` // time of the worker's last report, by Redis' clock
}

//go:embed activity.lua
var activitySource string

var activityScript = redis.NewScript(activitySource)

const (
	reportFresh  = 5 * time.Second // older reports are ignored: their worker has crashed or cannot reach Redis
	reportExpiry = time.Minute     // older reports are deleted
)

// jobReport is a worker's report of one change, without Worker, Since and At: its clock may be wrong.
type jobReport struct {
	Activity
	TookMS int64 `json:"took_ms"` // since the start of the work
}

// Activities returns the work in progress on all workers, longest-running first. Work appears after about half a
// second, see [Reporter]. Workers that have not reported for 5 s are omitted.
func (s *Store) Activities(ctx context.Context) ([]Activity, error) {
	reply, err := activityScript.Run(ctx, s.redis, []string{s.namespace.Working()}, "list",
		reportExpiry.Milliseconds()).Slice()
	if err != nil {
		return nil, fmt.Errorf("read the workers' activities: %w", err)
	}
	if len(reply) == 0 {
		return nil, nil
	}
	ms, _ := reply[0].(int64)
	now := time.UnixMilli(ms)
	all := []Activity{}
	for pair := range slices.Chunk(reply[1:], 2) {
		worker, _ := pair[0].(string)
		report, _ := pair[len(pair)-1].(string)
		all = append(all, activitiesOf(worker, report, now)...)
	}
	slices.SortFunc(all, func(a, b Activity) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Job, b.Job))
	})
	return all, nil
}

// activitiesOf parses a worker's report. It returns nil if the report is invalid or old.
func activitiesOf(worker, value string, now time.Time) []Activity {
	head, document, _ := strings.Cut(value, " ")
	ms, err := strconv.ParseInt(head, 10, 64)
	at := time.UnixMilli(ms).UTC()
	var jobs []jobReport
	if err != nil || now.Sub(at).Abs() > reportFresh || json.Unmarshal([]byte(document), &jobs) != nil {
		return nil
	}
	all := make([]Activity, len(jobs))
	for i, job := range jobs {
		all[i] = job.Activity
		all[i].Worker, all[i].At = worker, at
		all[i].Since = at.Add(-time.Duration(job.TookMS) * time.Millisecond)
	}
	return all
}
