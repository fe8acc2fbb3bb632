package changes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redisx"
)

// ErrBadEntry means that a string is not the ID of a stream entry, such as "1795223511284-0".
var ErrBadEntry = errors.New("not an entry id")

// State is the state of a change.
type State string

// The states of a change, in order. It is unknown if neither it nor its result is in a stream any more.
const (
	Queued   State = "queued"   // not yet read by a worker
	Pending  State = "pending"  // read, and not yet settled
	Answered State = "answered" // there is a result
	Unknown  State = "unknown"
)

// Progress is the state of a change, and its result once it is answered.
type Progress struct {
	State  State
	Result events.Result
}

// Tracker follows individual changes. A change is identified by its stream entry, as returned by
// [stream.Publisher.Add]; see [events.Result.Entry]. A Tracker is safe for concurrent use, and all its Waits together
// occupy one of the client's connections.
type Tracker struct {
	redis     redis.UniversalClient
	results   *stream.Reader
	namespace events.Namespace
}

// NewTracker returns a Tracker of the changes of a deployment.
func NewTracker(client redis.UniversalClient, namespace events.Namespace) *Tracker {
	return &Tracker{client, stream.NewReader(client), namespace}
}

// In returns the Tracker of the changes of another cell. It shares the connections of t.
func (t *Tracker) In(namespace events.Namespace) *Tracker {
	return &Tracker{t.redis, t.results, namespace}
}

const (
	firstRetry      = 10 * time.Millisecond // of Wait, while Redis is unavailable; doubles up to lastRetry
	lastRetry       = time.Second
	recheckInterval = 5 * time.Second // of Wait: the change may be settled without a result, or lost by Redis
	maxScan         = 25_000          // results to search, from either end; two changes may have 10,000 for views each
)

// Progress returns the state of a change. For a change that is no longer waiting it searches the results:
// the first 25,000 since the change was published, by Redis' clock, and the last 25,000. Trimmed results are
// not found. It returns [ErrBadEntry] or an error of Redis.
func (t *Tracker) Progress(ctx context.Context, entry string) (Progress, error) {
	p, _, err := t.locate(ctx, entry)
	return p, err
}

// Wait waits until the change is answered or unknown. It retries while Redis is unavailable. If ctx ends first,
// it returns the cause and the last known progress.
func (t *Tracker) Wait(ctx context.Context, entry string) (Progress, error) {
	var known Progress
	for pause := firstRetry; ; {
		p, last, err := t.locate(ctx, entry)
		if err == nil && p.State != Answered && p.State != Unknown {
			known, pause = p, firstRetry
			p, err = t.follow(ctx, entry, last)
		}
		switch {
		case err == nil && p.State != "":
			return p, nil
		case ctx.Err() != nil:
			return known, fmt.Errorf("wait for change %s: %w", entry, context.Cause(ctx))
		case redisx.Unavailable(err):
			redisx.Pause(ctx, pause)
			pause = min(2*pause, lastRetry)
		case err != nil:
			return Progress{}, err
		}
	}
}

// follow waits up to recheckInterval for the result of the change, among the results after ID last. If none arrives,
// the Progress is zero.
func (t *Tracker) follow(ctx context.Context, entry, last string) (p Progress, err error) {
	topic := t.namespace.Results()
	after := map[string]string{topic: last}
	for end := time.Now().Add(recheckInterval); time.Now().Before(end) && ctx.Err() == nil; {
		read, err := t.results.Next(ctx, after)
		if err != nil {
			return Progress{}, err
		}
		for _, e := range read[topic] {
			if after[topic] = e.ID; p.read(e, entry) {
				return p, nil
			}
		}
	}
	return Progress{}, nil
}

// locate returns the progress of a change and, if it is waiting, the last result so far.
func (t *Tracker) locate(ctx context.Context, entry string) (p Progress, last string, err error) {
	ms, _, ok := events.ParseEntryID(entry)
	if !ok {
		return Progress{}, "", fmt.Errorf("%w: %.40q", ErrBadEntry, entry)
	}
	state, last, err := t.state(ctx, entry)
	if err != nil {
		return Progress{}, "", fmt.Errorf("locate change %s: %w", entry, err)
	}
	if state != Unknown {
		return Progress{State: state}, last, nil
	}
	if p, err = t.search(ctx, entry, ms); err != nil {
		return Progress{}, "", fmt.Errorf("search the result of change %s: %w", entry, err)
	}
	return p, "", nil
}

// state returns whether a change is queued, pending or, as far as the stream of changes tells, unknown, and
// the last result so far, in one step.
func (t *Tracker) state(ctx context.Context, entry string) (_ State, last string, err error) {
	pipe := t.redis.TxPipeline()
	results := pipe.XRevRangeN(ctx, t.namespace.Results(), "+", "-", 1)
	entries := pipe.XRangeN(ctx, t.namespace.Changes(), entry, entry, 1)
	groups := pipe.XInfoGroups(ctx, t.namespace.Changes())
	pending := pipe.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: t.namespace.Changes(), Group: events.WorkersGroup, Start: entry, End: entry, Count: 1,
	})
	_, err = pipe.Exec(ctx)
	if results.Err() != nil || entries.Err() != nil { // the others fail if the stream or the group is missing
		return "", "", err
	}
	last = "0-0"
	if newest := results.Val(); len(newest) > 0 {
		last = newest[0].ID
	}
	read := slices.ContainsFunc(groups.Val(), func(g redis.XInfoGroup) bool {
		return g.Name == events.WorkersGroup && (g.LastDeliveredID == entry || events.EntryAfter(g.LastDeliveredID, entry))
	})
	switch {
	case len(pending.Val()) > 0:
		return Pending, last, nil
	case len(entries.Val()) == 0:
		return Unknown, last, nil
	case !read:
		return Queued, last, nil
	}
	return Unknown, last, nil
}

// search searches the results added since ms: the oldest and, if there are too many to read all, the newest.
func (t *Tracker) search(ctx context.Context, entry string, ms uint64) (Progress, error) {
	topic, since := t.namespace.Results(), strconv.FormatUint(ms, 10)
	p, all, err := scan(t.results.Forward(ctx, topic, since, "+"), entry)
	if err == nil && !all && p.State == "" {
		p, _, err = scan(t.results.Backward(ctx, topic, "+", since), entry)
	}
	if p.State == "" {
		p.State = Unknown
	}
	return p, err
}

// scan searches results, and reports whether it reached the end. The progress is zero if the result was not found.
func scan(results iter.Seq2[redis.XMessage, error], entry string) (p Progress, all bool, err error) {
	n := 0
	for e, err := range results {
		if n++; err != nil || p.read(e, entry) || n == maxScan {
			return p, false, err
		}
	}
	return Progress{}, true, nil
}

// read sets p if the entry is the result of the change.
func (p *Progress) read(e redis.XMessage, entry string) bool {
	if uuid, _ := e.Values[redisstream.UUIDHeaderKey].(string); !strings.Contains(uuid, "/"+entry) { // saves decoding it
		return false
	}
	result, err := ParseResult(e)
	if err != nil || result.Type == events.ResultView || result.Type == events.ResultPurged { // a view may have any name
		return false
	}
	if result.Entry() != entry {
		return false
	}
	*p = Progress{State: Answered, Result: result}
	return true
}
