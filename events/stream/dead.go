package stream

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

var (
	//go:embed retry.lua
	retrySource string
	retryScript = redis.NewScript(retrySource)
)

// DeadLettersConfig says where [DeadLetters] are. Redis is required.
type DeadLettersConfig struct {
	Redis  redis.UniversalClient // never closed; must not retry by itself
	Prefix string                // of the streams that letters come from and go back to; default "lockstep:{0}:"
	Dead   string                // the stream that letters are in, default Prefix + "dead"

	// Unmarshaller reads an entry's fields, as [SubscriberConfig.Unmarshaller] does.
	Unmarshaller redisstream.Unmarshaller
}

// DeadLetters are the entries that were given up: to be looked at, put back, or dropped.
type DeadLetters struct {
	cfg DeadLettersConfig
}

// Errors of [DeadLetters].
var (
	// ErrNoLetter: there is no letter with that id, or none any more: it was retried, dropped, or trimmed.
	ErrNoLetter = errors.New("stream: no such dead letter")
	// ErrNotRetryable: the letter does not have all that the entry had, or does not say where it goes.
	ErrNotRetryable = errors.New("stream: the dead letter cannot be retried")
	// ErrBadID: that is no id of a letter.
	ErrBadID = errors.New("stream: not the id of a dead letter")
)

// Letter is an entry that was given up.
type Letter struct {
	ID       string    // its own, in the dead stream
	At       time.Time // when the entry was given up
	Reason   string    // a word or two, to group by
	Error    string    // one line
	Attempts int

	Stream   string // where the entry was
	Group    string // who gave it up
	Consumer string // which of them
	Entry    string // the id that it had there

	Original  map[string]string // the entry's fields
	Truncated string            // how many of them these are, as in "1000 of 1200 fields"; empty for all
}

// Query chooses letters. The zero Query is the newest hundred.
type Query struct {
	Reason string            // those with that very reason; empty for any
	Match  func(Letter) bool // those that it accepts; nil for all
	Oldest bool              // oldest first, not newest first
	Limit  int               // how many at most, 1 to 1000; default 100
	After  string            // go on behind that letter: the former page's Next
}

// Page is a part of what a [Query] chose.
type Page struct {
	Letters []Letter
	Next    string // more may come behind that letter; empty when there is no more
}

// NewDeadLetters makes DeadLetters.
func NewDeadLetters(cfg DeadLettersConfig) (*DeadLetters, error) {
	if cfg.Redis == nil {
		return nil, errors.New("stream: DeadLettersConfig.Redis is required")
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, string(events.DefaultNamespace))
	cfg.Dead = cmp.Or(cfg.Dead, cfg.Prefix+"dead")
	if cfg.Unmarshaller == nil {
		cfg.Unmarshaller = unmarshaller{}
	}
	return &DeadLetters{cfg}, nil
}

// One call of List looks at no more letters than lettersLooked, and at no more once they come to
// lettersBytes, so many at a time, and answers with fewer than asked for when these are not among them.
const (
	lettersLooked = 10_000
	lettersBytes  = 32 << 20
	lettersAtOnce = 100
	lettersMost   = 1_000
)

// List returns letters that q chooses. A page may be short, or even empty, and have a Next: ask on.
func (d *DeadLetters) List(ctx context.Context, q Query) (Page, error) {
	limit := cmp.Or(q.Limit, lettersAtOnce)
	if limit < 0 || limit > lettersMost {
		return Page{}, fmt.Errorf("stream: Query.Limit %d: want 1 to %d", limit, lettersMost)
	}
	page := Page{Next: q.After}
	for looked, bytes := 0, 0; looked < lettersLooked && bytes < lettersBytes; {
		letters, err := d.read(ctx, page.Next, q.Oldest)
		if err != nil {
			return Page{}, err
		}
		for _, letter := range letters {
			looked, bytes = looked+1, bytes+letter.size()
			page.Next = letter.ID
			if q.Reason != "" && letter.Reason != q.Reason || q.Match != nil && !q.Match(letter) {
				continue
			}
			if page.Letters = append(page.Letters, letter); len(page.Letters) == limit {
				return page, nil
			}
		}
		if len(letters) < lettersAtOnce {
			page.Next = ""
			break
		}
	}
	return page, nil
}

// read returns letters behind the one called after, or from the first on.
func (d *DeadLetters) read(ctx context.Context, after string, oldest bool) ([]Letter, error) {
	first, read := "+", d.cfg.Redis.XRevRangeN
	last := "-"
	if oldest {
		first, last, read = "-", "+", d.cfg.Redis.XRangeN
	}
	if after != "" {
		if err := checkID(after); err != nil {
			return nil, err
		}
		first = "(" + after
	}
	entries, err := read(ctx, d.cfg.Dead, first, last, lettersAtOnce).Result()
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters := make([]Letter, len(entries))
	for i, e := range entries {
		letters[i] = parseLetter(e)
	}
	return letters, nil
}

// size is about how many bytes the letter takes.
func (l Letter) size() int {
	n := len(l.Error)
	for name, value := range l.Original {
		n += len(name) + len(value)
	}
	return n
}

// Get returns one letter, or [ErrNoLetter].
func (d *DeadLetters) Get(ctx context.Context, id string) (Letter, error) {
	if err := checkID(id); err != nil {
		return Letter{}, err
	}
	entries, err := d.cfg.Redis.XRange(ctx, d.cfg.Dead, id, id).Result()
	if err != nil {
		return Letter{}, fmt.Errorf("get dead letter %s: %w", id, err)
	}
	if len(entries) == 0 {
		return Letter{}, fmt.Errorf("%w: %s", ErrNoLetter, id)
	}
	return parseLetter(entries[0]), nil
}

// Message reads a letter's entry as its consumer would have, or says why it cannot be read.
func (d *DeadLetters) Message(l Letter) (*message.Message, error) {
	fields := make([]string, 0, 2*len(l.Original))
	for name, value := range l.Original {
		fields = append(fields, name, value)
	}
	return decode(d.cfg.Unmarshaller, entry{id: l.Entry, fields: fields})
}

// Retried says what became of one letter: the id that its entry has now, or why it stays a letter.
type Retried struct {
	ID     string
	Stream string
	Entry  string
	Err    error // [ErrNoLetter] or [ErrNotRetryable]; nil when it was retried
}

// Retry puts the letters' entries back into the streams that they came from, with the fields that they
// had, so that their messages keep their UUIDs, and removes the letters. Each letter is one atomic step,
// and one that is gone is not retried again: after an error, ask again for the same ids. It returns
// what became of each id, in order, up to an error of Redis; with [ErrBadID] among them, nothing is done.
//
// An entry that is put back is a new one to its stream: it has a new id, comes after all that is there,
// and goes to every group that reads the stream, to those as well that had settled it.
func (d *DeadLetters) Retry(ctx context.Context, ids ...string) ([]Retried, error) {
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return nil, err
		}
	}
	done := make([]Retried, 0, len(ids))
	for _, id := range ids {
		one, err := d.retry(ctx, id)
		if err != nil {
			return done, fmt.Errorf("retry dead letter %s: %w", id, err)
		}
		done = append(done, one)
	}
	return done, nil
}

func (d *DeadLetters) retry(ctx context.Context, id string) (Retried, error) {
	one := Retried{ID: id}
	letter, err := d.Get(ctx, id)
	switch {
	case errors.Is(err, ErrNoLetter):
		one.Err = err
		return one, nil
	case err != nil:
		return one, err
	case !strings.HasPrefix(letter.Stream, d.cfg.Prefix):
		one.Err = fmt.Errorf("%w: %s is from stream %.80q, which is none with prefix %s", ErrNotRetryable, id, letter.Stream, d.cfg.Prefix)
		return one, nil
	}
	one.Stream = letter.Stream
	reply, err := retryScript.Run(ctx, d.cfg.Redis, []string{d.cfg.Dead, letter.Stream}, id).StringSlice()
	if err != nil {
		return one, err
	}
	if len(reply) != 2 {
		return one, fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	switch reply[0] {
	case "retried":
		one.Entry = reply[1]
	case "gone":
		one.Err = fmt.Errorf("%w: %s", ErrNoLetter, id)
	case "truncated":
		one.Err = fmt.Errorf("%w: %s has only %s; publish it anew, or drop it", ErrNotRetryable, id, letter.Truncated)
	case "empty":
		one.Err = fmt.Errorf("%w: %s has none of the entry's fields, which was trimmed before it was given up; drop it", ErrNotRetryable, id)
	default:
		return one, fmt.Errorf("%w: %q", errReply, reply[0])
	}
	return one, nil
}

// Drop removes letters for good and returns how many there were of them.
func (d *DeadLetters) Drop(ctx context.Context, ids ...string) (int, error) {
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return 0, err
		}
	}
	dropped := 0
	for len(ids) > 0 {
		n := min(len(ids), lettersAtOnce)
		gone, err := d.cfg.Redis.XDel(ctx, d.cfg.Dead, ids[:n]...).Result()
		if err != nil {
			return dropped, fmt.Errorf("drop dead letters: %w", err)
		}
		dropped, ids = dropped+int(gone), ids[n:]
	}
	return dropped, nil
}

// checkID refuses what is not "milliseconds-number": Redis would take half of one for another letter.
func checkID(id string) error {
	if _, _, ok := events.ParseEntryID(id); !ok {
		return fmt.Errorf("%w: %.40q; want one as in 1795223511284-0", ErrBadID, id)
	}
	return nil
}

// parseLetter reads what the settle script wrote. Of what another wrote it takes what it can.
func parseLetter(e redis.XMessage) Letter {
	l := Letter{ID: e.ID, Original: make(map[string]string)}
	for name, value := range e.Values {
		if original, ok := strings.CutPrefix(name, "original:"); ok {
			l.Original[original], _ = value.(string)
		}
	}
	text := func(name string) string { s, _ := e.Values[name].(string); return s }
	l.Reason, l.Error, l.Truncated = text("reason"), text("error"), text("truncated")
	l.Stream, l.Group, l.Consumer, l.Entry = text("stream"), text("group"), text("consumer"), text("entry")
	l.Attempts, _ = strconv.Atoi(text("attempts"))
	l.At = events.EntryTime(e.ID)
	if at, err := strconv.ParseInt(text("at"), 10, 64); err == nil {
		l.At = time.UnixMilli(at).UTC()
	}
	return l
}
