package stream

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// lua contains the scripts. The header of each file documents its arguments, replies and errors.
//
//go:embed *.lua
var lua embed.FS

var (
	takeScript       = redis.NewScript(source("groups", "take"))
	beginScript      = redis.NewScript(source("begin"))
	beatScript       = redis.NewScript(source("beat"))
	nackScript       = redis.NewScript(source("nack"))
	sweepScript      = redis.NewScript(source("sweep"))
	leaveScript      = redis.NewScript(source("leave"))
	siblingsScript   = redis.NewScript(source("siblings"))
	unparkScript     = redis.NewScript(source("unpark"))
	retryScript      = redis.NewScript(source("retry"))
	trimDeadScript   = redis.NewScript(source("trim_dead"))
	settleScript     = redis.NewScript(source("groups", "settle"))
	trimScript       = redis.NewScript(source("groups", "trim"))
	watermarksScript = redis.NewScript(source("groups", "watermarks"))
)

// source joins scripts.
func source(names ...string) (text string) {
	for _, name := range names {
		part, err := lua.ReadFile(name + ".lua")
		if err != nil {
			panic(err)
		}
		text += string(part)
	}
	return text
}

// parked is the consumer that owns entries waiting to be redelivered. No Subscriber uses this name, so
// no consumer can finish such an entry before it is delivered again.
const parked = "(parked)"

const entriesAtOnce = 256 // maximum number of entries or keys per script call, which bounds how long it blocks Redis

var errReply = errors.New("stream: unexpected reply of a script")

// group is one consumer of one group on one stream, with the keys of its scripts.
type group struct {
	redis        onceClient
	stream       string
	due          string // ZSET: entry ID -> due time, ms
	failures     string // HASH: entry ID -> failed attempts, and deaths; see begin.lua
	parkedIndex  string // ZSET of labels, all scores 0: parked entries ordered by key
	parkedLabels string // HASH: entry ID -> label
	name         string
	consumer     string
	start        string // ID after which a new group starts
	clock        *clock
}

// initialize creates the group and the stream, unless they exist, and reads Redis' clock.
func (g *group) initialize(ctx context.Context) error {
	var err error
	// a group that is re-created later continues from here
	if g.start, err = resolve(ctx, g.redis, g.stream, g.start); err != nil {
		return err
	}
	if err := g.create(ctx); err != nil {
		return err
	}
	now, err := Time(ctx, g.redis, g.stream)
	if err != nil {
		return err
	}
	g.clock.set(now.UnixMilli())
	return nil
}

// resolve returns id or, if it is "$", the ID of the last entry of a stream, "0" if there is none.
func resolve(ctx context.Context, client redis.UniversalClient, stream, id string) (string, error) {
	if id != "$" {
		return id, nil
	}
	info, err := client.XInfoStream(ctx, stream).Result()
	switch {
	case noStream(err):
		return "0", nil
	case err != nil:
		return "", fmt.Errorf("read the end of stream %s: %w", stream, err)
	}
	return info.LastGeneratedID, nil
}

// create creates the group and the stream. It does nothing if the group exists.
func (g *group) create(ctx context.Context) error {
	err := g.redis.XGroupCreateMkStream(ctx, g.stream, g.name, g.start).Err()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		return fmt.Errorf("create group %s of stream %s: %w", g.name, g.stream, err)
	}
	return nil
}

type entry struct {
	id     string
	failed int      // failed attempts
	deaths int      // processes that died or hung while its handler ran
	times  int      // deliveries, including this one
	origin string   // "new", "parked", or ":" followed by the consumer under which it lapsed
	more   bool     // further parked entries of its key may be unparked
	fields []string // name, value, name, value, …
}

type takeResult struct {
	entries []entry
	next    int64  // ms until the earliest due time, -1 if there is none
	last    string // ID most recently assigned in the stream

	keys   []string // of pending entries that have vanished, "" if unknown
	unread int64    // number of entries that have vanished unread
}

// bytes returns the size of the entries' fields and values.
func (t takeResult) bytes() (n int64) {
	for _, e := range t.entries {
		n += e.bytes()
	}
	return n
}

// errLate means that Redis ran a take so late that consumers may have been unable to send heartbeats. It took nothing.
var errLate = errors.New("Redis was slow to run the script")

// take reads up to count entries, of which up to share come from the due index, and stops once it has read
// the given number of bytes. It sends a heartbeat if beat is true.
func (g *group) take(
	ctx context.Context, count, share int, bytes int64, visibility time.Duration, beat bool,
) (takeResult, error) {
	deadline := g.clock.deadline(min(tryTimeout, max(time.Second, visibility/2)))
	alive := 0
	if beat {
		alive = 1
	}
	reply, err := takeScript.Run(ctx, g.redis, []string{g.stream, g.due, g.failures, g.parkedIndex, g.parkedLabels},
		g.name, g.consumer, parked, count, share, visibility.Milliseconds(), bytes, deadline, alive).Slice()
	if err != nil {
		return takeResult{}, err
	}
	if len(reply) > 0 {
		if now, ok := reply[0].(int64); ok {
			g.clock.set(now)
		}
	}
	switch len(reply) {
	case 7:
	case 1:
		return takeResult{}, errLate
	default:
		return takeResult{}, fmt.Errorf("take: %w", errReply)
	}
	var t takeResult
	t.next, _ = reply[3].(int64)
	t.last, _ = reply[4].(string)
	var sound bool
	t.keys, sound = list(reply[5])
	t.unread, _ = reply[6].(int64)
	sound = sound && t.last != ""
	for i, parts := range []int{7, 2} { // redelivered entries, then new ones
		list, ok := reply[1+i].([]any)
		sound = sound && ok
		for _, raw := range list {
			e, ok := parseEntry(raw, parts)
			sound = sound && ok
			t.entries = append(t.entries, e)
		}
	}
	if !sound {
		return takeResult{}, fmt.Errorf("take: %w", errReply)
	}
	return t, nil
}

// parseEntry parses an entry of want parts: ID, fields and, unless the entry is new, its history.
func parseEntry(raw any, want int) (e entry, ok bool) {
	parts, ok := raw.([]any)
	if !ok || len(parts) != want {
		return entry{}, false
	}
	e.id, _ = parts[0].(string)
	e.fields, ok = texts(parts[1])
	e.times, e.origin = 1, "new"
	if want > 2 {
		failed, _ := parts[2].(int64)
		deaths, _ := parts[3].(int64)
		times, _ := parts[4].(int64)
		e.failed, e.deaths, e.times = int(failed), int(deaths), int(times)
		e.origin, _ = parts[5].(string)
		e.more = parts[6] == int64(1)
	}
	return e, ok && e.id != "" && e.origin != ""
}

// values returns the entry's fields by name.
func (e entry) values() map[string]any {
	values := make(map[string]any, len(e.fields)/2)
	for i := 0; i+1 < len(e.fields); i += 2 {
		values[e.fields[i]] = e.fields[i+1]
	}
	return values
}

// bytes returns the size of the entry's fields and values.
func (e entry) bytes() (n int64) {
	for _, field := range e.fields {
		n += int64(len(field))
	}
	return n
}

// beat extends the due times of ids and returns those that this consumer no longer owns.
func (g *group) beat(ctx context.Context, ids []string, visibilityMS int64) (lost []string, err error) {
	args := append(make([]any, 0, 3+len(ids)), g.name, g.consumer, visibilityMS)
	for _, id := range ids {
		args = append(args, id)
	}
	return beatScript.Run(ctx, g.redis, []string{g.stream, g.due}, args...).StringSlice()
}

// ack settles ids without outputs, and returns those that this consumer does not own.
func (g *group) ack(ctx context.Context, ids []string) (refused []string, err error) {
	var call settleCall
	for _, id := range ids {
		if err := call.add(id, g.consumer, nil, nil, nil); err != nil {
			return nil, err
		}
	}
	verdicts, _, err := g.settle(ctx, call)
	if err != nil {
		return nil, err
	}
	for i, verdict := range verdicts {
		if verdict == verdictNotOwner { // one that is not pending was acknowledged before, unless the group was created anew
			refused = append(refused, ids[i])
		}
	}
	return refused, nil
}

type giveBack struct {
	id      string
	key     string
	delayMS int64
	how     string // Nacked, Deferred or early
	deaths  int    // before the delivery; -1 leaves them
}

const early = "early" // of an entry that was never handed out, and may be unparked before the delay ends

// label returns the entry's member of the parked index, "" without a key. Labels sort by key, kind and age.
// Those of failed attempts come before others that must wait.
func (b giveBack) label() string {
	switch {
	case b.key == "":
		return ""
	case b.how == early:
		return labelOf(b.key, mayUnpark) + sortable(b.id)
	case b.how == Nacked:
		return labelOf(b.key, mustWait) + afterFailure + sortable(b.id)
	}
	return labelOf(b.key, mustWait) + sortable(b.id)
}

// sortable prefixes each number of an entry ID with a letter for its length, so that byte order is numeric
// order: 1795223511284-10 becomes n1795223511284-c10.
func sortable(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	return string(rune('a'+len(ms))) + ms + "-" + string(rune('a'+len(seq))) + seq
}

const (
	mayUnpark = '+'
	mustWait  = '-'

	afterFailure = "!" // after mustWait: a failed attempt, which Hasten ignores; less than any letter
)

func labelOf(key string, kind byte) string { return key + "\x00" + string(kind) }

// nack gives back entries that are pending under a name: the consumer's own, or that of parked entries.
func (g *group) nack(ctx context.Context, name string, backs []giveBack) (refused []string, err error) {
	keys := []string{g.stream, g.due, g.failures, g.parkedIndex, g.parkedLabels}
	args := append(make([]any, 0, 3+5*len(backs)), g.name, name, parked)
	for _, b := range backs {
		args = append(args, b.id, b.delayMS, b.how, b.label(), b.deaths)
	}
	return nackScript.Run(ctx, g.redis, keys, args...).StringSlice()
}

// deferParked changes when parked entries of a key are redelivered. It skips those that are no longer parked.
func (g *group) deferParked(ctx context.Context, key string, ids []string, delay time.Duration) error {
	backs := make([]giveBack, len(ids))
	for i, id := range ids {
		backs[i] = giveBack{id: id, key: key, delayMS: ceilMS(delay), how: Deferred, deaths: -1}
	}
	_, err := g.nack(ctx, parked, backs)
	return err
}

// sweep repairs the due index for one batch of pending entries, and returns where to continue, or "". Unless it is
// thorough, it trusts an index that has as many due times as there are pending entries.
func (g *group) sweep(
	ctx context.Context, from string, visibilityMS int64, thorough bool,
) (repaired int64, next string, err error) {
	const batch = 1000
	all := 0
	if thorough {
		all = 1
	}
	reply, err := sweepScript.Run(ctx, g.redis, []string{g.stream, g.due}, g.name, visibilityMS, from, batch, all).Slice()
	if err != nil || len(reply) != 2 {
		return 0, "", err
	}
	repaired, _ = reply[0].(int64)
	next, _ = reply[1].(string)
	return repaired, next, nil
}

const pageBytes = 4 << 20 // approximate maximum size of one page of siblings

// readParked reads up to limit parked entries in a range of labels. It also returns the label to continue after, ""
// at the end.
func (g *group) readParked(ctx context.Context, from, to string, limit int) (found []entry, last string, err error) {
	reply, err := siblingsScript.Run(ctx, g.redis, []string{g.stream, g.parkedIndex, g.parkedLabels}, g.name, parked,
		from, to, limit, pageBytes).Slice()
	if err == nil && len(reply) == 0 {
		err = errReply
	}
	if err != nil {
		return nil, "", err
	}
	last, _ = reply[0].(string)
	for _, raw := range reply[1:] {
		e, ok := parseEntry(raw, 2)
		if !ok {
			return nil, "", fmt.Errorf("siblings: %w", errReply)
		}
		found = append(found, e)
	}
	return found, last, nil
}

// unpark makes the oldest parked entry of each key due, of those that may be unparked early. It reports for each key
// whether there are more.
func (g *group) unpark(ctx context.Context, keys []string) (more []bool, err error) {
	args := append(make([]any, 0, 2+2*len(keys)), g.name, parked)
	for _, key := range keys {
		args = append(args, labelOf(key, mayUnpark), labelOf(key, mustWait))
	}
	more, err = unparkScript.Run(ctx, g.redis, []string{g.stream, g.due, g.parkedIndex, g.parkedLabels},
		args...).BoolSlice()
	if err == nil && len(more) != len(keys) {
		err = fmt.Errorf("unpark: %w", errReply)
	}
	return more, err
}

func texts(raw any) ([]string, bool) {
	fields, ok := list(raw)
	return fields, ok && len(fields)%2 == 0
}

func list(raw any) ([]string, bool) {
	items, ok := raw.([]any)
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i], _ = item.(string)
	}
	return texts, ok
}
