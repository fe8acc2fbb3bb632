package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// DeadLetters lists, retries and drops dead letters.
type DeadLetters struct {
	redis        onceClient
	prefix, dead string
}

// Errors of [DeadLetters]. Their texts are shown to people.
var (
	// ErrNoLetter: no letter has that ID. It may have been retried, dropped or trimmed.
	ErrNoLetter = errors.New("no such dead letter")
	// ErrNotRetryable: the letter is incomplete, or its stream does not have the prefix.
	ErrNotRetryable = errors.New("the dead letter cannot be retried")
	// ErrBadID: the text is not the ID of a letter.
	ErrBadID = errors.New("not the id of a dead letter")
)

// Letter is a dead-lettered entry.
type Letter struct {
	ID       string    // ID in the dead stream
	At       time.Time // when the entry was dead-lettered
	Reason   string    // a word or two, to group by
	Class    string    // kind of fault; "" if unknown
	Error    string    // one line
	Attempts int

	Stream   string // original stream
	Group    string // group that gave up
	Consumer string // consumer that gave up
	Entry    string // ID in the original stream

	Original  map[string]string // the entry's fields
	Truncated string            // how many fields Original has, such as "1000 of 1200 fields"; empty if complete
}

// Query selects letters. The zero Query selects the newest hundred.
type Query struct {
	Reason string            // exact reason; empty for any
	Match  func(Letter) bool // additional filter; nil for all
	Oldest bool              // list the oldest first instead of the newest
	Limit  int               // maximum number of letters, 1 to 1000; default 100
	After  string            // continue after this letter: next of the previous page
}

// NewDeadLetters returns the DeadLetters of the stream prefix + "dead". Entries may return to streams with
// the prefix, by default "lockstep:{0}:". The client is never closed.
func NewDeadLetters(client redis.UniversalClient, prefix string) *DeadLetters {
	prefix = cmp.Or(prefix, string(events.DefaultNamespace))
	return &DeadLetters{onceClient{client}, prefix, prefix + "dead"}
}

// List stops after scanning lettersLooked letters or lettersBytes bytes, even if it has found fewer than requested.
const (
	lettersLooked = 10_000
	lettersBytes  = 32 << 20
	lettersAtOnce = 100
	lettersMost   = 1_000
)

// List returns a page of the letters that q selects, and the cursor for the next page, "" on the last. A page
// may be short or even empty and still have a next one.
func (d *DeadLetters) List(ctx context.Context, q Query) (page []Letter, next string, err error) {
	limit := cmp.Or(q.Limit, lettersAtOnce)
	if limit < 0 || limit > lettersMost {
		return nil, "", fmt.Errorf("stream: Query.Limit %d: want 1 to %d", limit, lettersMost)
	}
	first, last, read := "+", "-", NewReader(d.redis).Backward
	if q.Oldest {
		first, last, read = "-", "+", NewReader(d.redis).Forward
	}
	if q.After != "" {
		if err := checkIDs(q.After); err != nil {
			return nil, "", err
		}
		first = "(" + q.After
	}
	looked, bytes := 0, 0
	for e, err := range read(ctx, d.dead, first, last) {
		if err != nil {
			return nil, "", fmt.Errorf("list dead letters: %w", err)
		}
		letter := parseLetter(e)
		if (q.Reason == "" || letter.Reason == q.Reason) && (q.Match == nil || q.Match(letter)) {
			page = append(page, letter)
		}
		looked, bytes = looked+1, bytes+Size(e)
		if len(page) == limit || looked == lettersLooked || bytes >= lettersBytes {
			return page, e.ID, nil
		}
	}
	return page, "", nil
}

// Get returns one letter, or [ErrNoLetter].
func (d *DeadLetters) Get(ctx context.Context, id string) (Letter, error) {
	if err := checkIDs(id); err != nil {
		return Letter{}, err
	}
	entries, err := d.redis.XRange(ctx, d.dead, id, id).Result()
	if err != nil {
		return Letter{}, fmt.Errorf("get dead letter %s: %w", id, err)
	}
	if len(entries) == 0 {
		return Letter{}, fmt.Errorf("%w: %s", ErrNoLetter, id)
	}
	return parseLetter(entries[0]), nil
}

// Message decodes the letter's original entry.
func (l Letter) Message() (*message.Message, error) {
	values := make(map[string]any, len(l.Original))
	for name, value := range l.Original {
		values[name] = value
	}
	return decode(unmarshaller{}, l.Entry, values)
}

// Retry adds a letter's entry to its original stream again, with the original fields and therefore the original
// message UUID, and removes the letter, in one atomic step. It returns the stream and the ID of the new entry.
// It returns [ErrBadID], [ErrNoLetter] or [ErrNotRetryable] if nothing was changed. After another error it is
// safe to call Retry again.
//
// The new entry is at the end of the stream. Every group receives it, even groups that settled the original.
func (d *DeadLetters) Retry(ctx context.Context, id string) (topic, entry string, err error) {
	letter, err := d.Get(ctx, id)
	if err != nil {
		return "", "", err
	}
	if topic = letter.Stream; !strings.HasPrefix(topic, d.prefix) {
		return "", "", fmt.Errorf("%w: %s is from stream %.80q, which does not have the prefix %s", ErrNotRetryable, id,
			topic, d.prefix)
	}
	reply, err := retryScript.Run(ctx, d.redis, []string{d.dead, topic}, id).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return "", "", fmt.Errorf("retry dead letter %s: %w", id, err)
	}
	switch reply[0] {
	case "retried":
		return topic, reply[1], nil
	case "gone":
		return "", "", fmt.Errorf("%w: %s", ErrNoLetter, id)
	case "truncated":
		return "", "", fmt.Errorf("%w: %s has only %s; publish the event again, or drop the letter", ErrNotRetryable, id,
			letter.Truncated)
	case "empty":
		return "", "", fmt.Errorf("%w: %s is empty: the entry was trimmed before it was dead-lettered; drop the letter",
			ErrNotRetryable, id)
	}
	return "", "", fmt.Errorf("retry dead letter %s: %w: %q", id, errReply, reply[0])
}

// Drop deletes letters and returns how many existed.
func (d *DeadLetters) Drop(ctx context.Context, ids ...string) (int, error) {
	if err := checkIDs(ids...); err != nil {
		return 0, err
	}
	dropped := 0
	for batch := range slices.Chunk(ids, lettersAtOnce) {
		gone, err := d.redis.XDel(ctx, d.dead, batch...).Result()
		if err != nil {
			return dropped, fmt.Errorf("drop dead letters: %w", err)
		}
		dropped += int(gone)
	}
	return dropped, nil
}

// checkIDs returns an error unless all IDs have the form "milliseconds-sequence": Redis would expand a partial ID.
func checkIDs(ids ...string) error {
	for _, id := range ids {
		if _, _, ok := events.ParseEntryID(id); !ok {
			return fmt.Errorf("%w: %.40q; want the form 1795223511284-0", ErrBadID, id)
		}
	}
	return nil
}

// parseLetter parses a letter written by the settle script. It ignores fields that it cannot parse.
func parseLetter(e redis.XMessage) Letter {
	l := Letter{ID: e.ID, Original: make(map[string]string)}
	for name, value := range e.Values {
		if original, ok := strings.CutPrefix(name, "original:"); ok {
			l.Original[original], _ = value.(string)
		}
	}
	text := func(name string) string { s, _ := e.Values[name].(string); return s }
	l.Reason, l.Class, l.Error, l.Truncated = text("reason"), text("class"), text("error"), text("truncated")
	l.Stream, l.Group, l.Consumer, l.Entry = text("stream"), text("group"), text("consumer"), text("entry")
	l.Attempts, _ = strconv.Atoi(text("attempts"))
	l.At = events.EntryTime(e.ID)
	if at, err := strconv.ParseInt(text("at"), 10, 64); err == nil {
		l.At = time.UnixMilli(at).UTC()
	}
	return l
}
