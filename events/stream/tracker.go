package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// ErrBadEntry means that a string is not the ID of a stream entry, such as "1795223511284-0".
var ErrBadEntry = errors.New("stream: not an entry id")

// ChangeState is the state of a change.
type ChangeState string

// The states of a change, in order. It is unknown if neither it nor its result is in a stream any more.
const (
	ChangeQueued   ChangeState = "queued"   // not yet read by a worker
	ChangePending  ChangeState = "pending"  // read, and not yet settled
	ChangeAnswered ChangeState = "answered" // there is a result
	ChangeUnknown  ChangeState = "unknown"
)

// Progress is the state of a change, and its result once it is answered.
type Progress struct {
	State  ChangeState
	Result events.Result
}

// TrackerConfig configures a [Tracker]. All fields are required.
type TrackerConfig struct {
	Redis   redis.UniversalClient // never closed; each Wait occupies one of its connections
	Changes string                // stream of changes
	Group   string                // consumer group of the workers
	Results string                // stream of results
}

// Tracker follows individual changes. A change is identified by its stream entry, as returned by [Publisher.Add]; the
// ID of its result ends in "/" and that entry, see [events.Change.Result]. A Tracker is safe for concurrent use.
type Tracker struct{ cfg TrackerConfig }

// NewTracker returns a Tracker.
func NewTracker(cfg TrackerConfig) (*Tracker, error) {
	if cfg.Redis == nil || cfg.Changes == "" || cfg.Group == "" || cfg.Results == "" {
		return nil, errors.New("stream: all of TrackerConfig is required")
	}
	return &Tracker{cfg}, nil
}

const (
	recheckInterval = 5 * time.Second // of Wait: the change may be settled without a result, or lost by Redis
	maxScan         = 25_000          // results to search, both forward from the time of the change and back from the newest; two changes may have 10,000 for views each
	scanBatch       = 200
)

// Progress returns the state of a change. For a change that is no longer waiting it searches the results:
// the first 25,000 since the change was published, by Redis' clock, and the last 25,000. Trimmed results are
// not found. It returns [ErrBadEntry] or an error of Redis.
func (t *Tracker) Progress(ctx context.Context, entry string) (Progress, error) {
	ms, _, ok := events.ParseEntryID(entry)
	if !ok {
		return Progress{}, badEntry(entry)
	}
	p, _, err := t.locate(ctx, entry, ms)
	return p, err
}

// Wait waits until the change is answered or unknown. It retries while Redis is unavailable. If ctx ends first,
// it returns the cause and the last known progress.
func (t *Tracker) Wait(ctx context.Context, entry string) (Progress, error) {
	ms, _, ok := events.ParseEntryID(entry)
	if !ok {
		return Progress{}, badEntry(entry)
	}
	var known Progress
	for pause := firstRetry; ; {
		p, last, err := t.locate(ctx, entry, ms)
		switch {
		case err == nil && (p.State == ChangeAnswered || p.State == ChangeUnknown):
			return p, nil
		case ctx.Err() != nil:
			return known, fmt.Errorf("wait for change %s: %w", entry, context.Cause(ctx))
		case unavailable(err):
			sleep(ctx, pause)
			pause = min(2*pause, lastRetry)
			continue
		case err != nil:
			return Progress{}, err
		}
		known, pause = p, firstRetry
		if p, err := t.follow(ctx, entry, last); err != nil || p.State != "" {
			return p, err
		}
	}
}

// follow waits up to recheckInterval for the result of the change, among the results after ID last. If none arrives,
// the Progress is zero.
func (t *Tracker) follow(ctx context.Context, entry, last string) (p Progress, err error) {
	slice, cancel := context.WithTimeout(ctx, recheckInterval)
	defer cancel()
	_, err = Await(slice, t.cfg.Redis, t.cfg.Results, last, func(msg *message.Message) bool { return p.read(msg, entry) })
	if slice.Err() != nil {
		return p, nil
	}
	return p, err
}

// locate returns the progress of a change and, if it is waiting, the last result so far.
func (t *Tracker) locate(ctx context.Context, entry string, ms uint64) (p Progress, last string, err error) {
	reply, err := locateScript.Run(ctx, t.cfg.Redis, []string{t.cfg.Changes, t.cfg.Results}, t.cfg.Group, entry).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("locate: %w: %q", errReply, reply)
	}
	if err != nil {
		return Progress{}, "", fmt.Errorf("locate change %s: %w", entry, err)
	}
	if state := ChangeState(reply[0]); state == ChangeQueued || state == ChangePending {
		return Progress{State: state}, reply[1], nil
	}
	if p, err = t.search(ctx, entry, ms); err != nil {
		return Progress{}, "", fmt.Errorf("search the result of change %s: %w", entry, err)
	}
	return p, "", nil
}

// search searches the results added since ms: the oldest and, if there are too many to read all, the newest.
func (t *Tracker) search(ctx context.Context, entry string, ms uint64) (Progress, error) {
	since := strconv.FormatUint(ms, 10)
	p, all, err := t.scan(ctx, entry, since, "+", t.cfg.Redis.XRangeN)
	if err == nil && !all && p.State == "" {
		p, _, err = t.scan(ctx, entry, "+", since, t.cfg.Redis.XRevRangeN)
	}
	if p.State == "" {
		p.State = ChangeUnknown
	}
	return p, err
}

// scan searches the results between two IDs with a command for that direction, and reports whether it reached
// the end. The progress is zero if the result was not found.
func (t *Tracker) scan(ctx context.Context, entry, from, to string,
	read func(ctx context.Context, stream, from, to string, count int64) *redis.XMessageSliceCmd,
) (p Progress, all bool, err error) {
	for range maxScan / scanBatch {
		found, err := read(ctx, t.cfg.Results, from, to, scanBatch).Result()
		if err != nil {
			return Progress{}, false, err
		}
		for _, e := range found {
			if msg, err := decodeXMessage(e); err == nil && p.read(msg, entry) {
				return p, false, nil
			}
			from = "(" + e.ID
		}
		if len(found) < scanBatch {
			return Progress{}, true, nil
		}
	}
	return Progress{}, false, nil
}

// read sets p if msg is the result of the change.
func (p *Progress) read(msg *message.Message, entry string) bool {
	if !strings.HasSuffix(msg.UUID, "/"+entry) {
		return false
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil || result.Type == events.ResultView || result.Type == events.ResultPurged { // a view may have any name
		return false
	}
	*p = Progress{State: ChangeAnswered, Result: result}
	return true
}

func badEntry(entry string) error { return fmt.Errorf("%w: %.40q", ErrBadEntry, entry) }
