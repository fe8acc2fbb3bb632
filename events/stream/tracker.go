package stream

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

var (
	//go:embed locate.lua
	locateSource string

	locateScript = redis.NewScript(groupsSource + locateSource)
)

// ErrBadEntry means that a text is not the id of a stream entry, as "1795223511284-0" is.
var ErrBadEntry = errors.New("stream: not an entry id")

// ChangeState is how far a change has come.
type ChangeState string

// The states. A change goes from queued to pending and from there to answered; it is unknown when
// it is in its stream no more, or never was, and no result of it is found.
const (
	ChangeQueued   ChangeState = "queued"   // no worker has read it yet
	ChangePending  ChangeState = "pending"  // a worker has it, or it waits to be worked on again
	ChangeAnswered ChangeState = "answered" // there is a result
	ChangeUnknown  ChangeState = "unknown"
)

// Progress is how far a change has come, and its result once it is answered.
type Progress struct {
	State  ChangeState
	Result events.Result
}

// TrackerConfig says what a [Tracker] looks at. All of it is required.
type TrackerConfig struct {
	Redis   redis.UniversalClient // never closed; each Wait keeps one of its connections busy
	Changes string                // stream of changes
	Group   string                // who works on them
	Results string                // stream of results
}

// Tracker tells what became of single changes. A change is named by its stream entry, which
// [Publisher.Add] returns; its result is the one whose id ends in "/" and the entry, as
// [events.Job.Result] makes it. It is safe for concurrent use.
type Tracker struct{ cfg TrackerConfig }

// NewTracker makes a Tracker.
func NewTracker(cfg TrackerConfig) (*Tracker, error) {
	if cfg.Redis == nil || cfg.Changes == "" || cfg.Group == "" || cfg.Results == "" {
		return nil, errors.New("stream: all of TrackerConfig is required")
	}
	return &Tracker{cfg}, nil
}

const (
	// recheckInterval is after what time a Wait asks again where its change stands: it may have been settled
	// without a result, or Redis may have lost it.
	recheckInterval = 5 * time.Second

	// A result is looked for among so many that were added from the moment of its change on, and
	// among as many of the newest.
	maxScan   = 10_000
	scanBatch = 200
)

// Look says how far the change has come. That of a change which is not waiting any more takes a
// search in the results: among the first 10,000 since it was published, by Redis' clock, and the last
// 10,000. What was trimmed away is not found. The error is [ErrBadEntry], or that of Redis.
func (t *Tracker) Progress(ctx context.Context, entry string) (Progress, error) {
	ms, _, ok := events.ParseEntryID(entry)
	if !ok {
		return Progress{}, badEntry(entry)
	}
	p, _, err := t.locate(ctx, entry, ms)
	return p, err
}

// Wait waits until the change is answered or unknown. It outlasts a Redis that is away; when ctx ends
// first, it returns its cause, and how far the change had come when it was last looked at.
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

// follow waits for a while for the result behind the entry last. Without one by then, the progress
// is zero.
func (t *Tracker) follow(ctx context.Context, entry, last string) (p Progress, err error) {
	slice, cancel := context.WithTimeout(ctx, recheckInterval)
	defer cancel()
	_, err = Await(slice, t.cfg.Redis, t.cfg.Results, last, func(msg *message.Message) bool { return p.read(msg, entry) })
	if slice.Err() != nil {
		return p, nil
	}
	return p, err
}

// look also returns behind which entry of the results that of a waiting change will be.
func (t *Tracker) locate(ctx context.Context, entry string, ms uint64) (p Progress, last string, err error) {
	reply, err := locateScript.Run(ctx, t.cfg.Redis, []string{t.cfg.Changes, t.cfg.Results}, t.cfg.Group, entry).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("locate: %w: %q", errReply, reply)
	}
	if err != nil {
		return Progress{}, "", fmt.Errorf("look at change %s: %w", entry, err)
	}
	if state := ChangeState(reply[0]); state == ChangeQueued || state == ChangePending {
		return Progress{State: state}, reply[1], nil
	}
	if p, err = t.search(ctx, entry, ms); err != nil {
		return Progress{}, "", fmt.Errorf("look for the result of change %s: %w", entry, err)
	}
	return p, "", nil
}

// search looks for the result among those added since ms: the first of them and, if there are too many to
// see all, the last.
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

// scan looks for the result from one id towards another, with the command for that direction, and
// reports whether it got there. The progress is zero when it is not found.
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

// read takes in a message if it is the result of the change.
func (p *Progress) read(msg *message.Message, entry string) bool {
	if !strings.HasSuffix(msg.UUID, "/"+entry) {
		return false
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		return false
	}
	*p = Progress{State: ChangeAnswered, Result: result}
	return true
}

func badEntry(entry string) error { return fmt.Errorf("%w: %.40q", ErrBadEntry, entry) }
