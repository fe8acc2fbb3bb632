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

// Activity is one change that a worker works on now, under its lease and in a slot.
type Activity struct {
	Repo      string    `json:"repo"`
	Job       string    `json:"job"` // the change's id
	Worker    string    `json:"worker"`
	Operation string    `json:"operation"` // sync, remove, move or poll
	App       string    `json:"app,omitempty"`
	Ref       string    `json:"ref,omitempty"`
	Since     time.Time `json:"since"` // when the work began, by Redis' clock
	Fence     uint64    `json:"fence"`
	events.Progress
	At time.Time `json:"at"` // when the worker last said so, by Redis' clock
}

//go:embed activity.lua
var activitySource string

var activityScript = redis.NewScript(activitySource)

const (
	workingFresh  = 5 * time.Second // what was said longer ago is left out: that worker is dead, or cut off
	workingForget = time.Minute     // and after that long it is forgotten
)

// said is what a worker says of one change, without any moment: its clock may be wrong.
type said struct {
	Repo      string `json:"repo"`
	Job       string `json:"job"`
	Operation string `json:"operation"`
	App       string `json:"app,omitempty"`
	Ref       string `json:"ref,omitempty"`
	Fence     uint64 `json:"fence"`
	TookMS    int64  `json:"took_ms"` // since the work began
	events.Progress
}

// Activities returns what all workers work on now, the longest first. Work shows up once it has lasted half a
// second or so, see [Reporter]; that of a worker that has said nothing for 5 s is left out.
func (s *Store) Activities(ctx context.Context) ([]Activity, error) {
	reply, err := activityScript.Run(ctx, s.redis, []string{s.namespace.Working()}, "look", workingForget.Milliseconds()).Slice()
	if err != nil {
		return nil, fmt.Errorf("read what workers work on: %w", err)
	}
	if len(reply) == 0 {
		return nil, nil
	}
	now, _ := reply[0].(int64)
	all := []Activity{}
	for pair := range slices.Chunk(reply[1:], 2) {
		worker, _ := pair[0].(string)
		value, _ := pair[len(pair)-1].(string)
		all = append(all, activitiesOf(worker, value, time.UnixMilli(now).UTC())...)
	}
	slices.SortFunc(all, func(a, b Activity) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Job, b.Job))
	})
	return all, nil
}

// activitiesOf reads a worker's field; what cannot be read, or is old, says nothing.
func activitiesOf(worker, value string, now time.Time) []Activity {
	head, document, _ := strings.Cut(value, " ")
	ms, err := strconv.ParseInt(head, 10, 64)
	at := time.UnixMilli(ms).UTC()
	var jobs []said
	if err != nil || now.Sub(at).Abs() > workingFresh || json.Unmarshal([]byte(document), &jobs) != nil {
		return nil
	}
	all := make([]Activity, len(jobs))
	for i, job := range jobs {
		all[i] = Activity{
			Repo: job.Repo, Job: job.Job, Worker: worker, Operation: job.Operation, App: job.App, Ref: job.Ref,
			Since: at.Add(-time.Duration(job.TookMS) * time.Millisecond), Fence: job.Fence, Progress: job.Progress, At: at,
		}
	}
	return all
}
