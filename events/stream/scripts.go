package stream

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// lua contains the scripts. The header of each file documents its arguments, replies and errors.
//
//go:embed *.lua
var lua embed.FS

var (
	takeScript       = redis.NewScript(source("alive", "groups", "take"))
	touchScript      = redis.NewScript(source("alive", "touch"))
	beginScript      = redis.NewScript(source("begin"))
	beatScript       = redis.NewScript(source("beat"))
	ackScript        = redis.NewScript(source("ack"))
	nackScript       = redis.NewScript(source("nack"))
	sweepScript      = redis.NewScript(source("sweep"))
	leaveScript      = redis.NewScript(source("leave"))
	siblingsScript   = redis.NewScript(source("siblings"))
	unparkScript     = redis.NewScript(source("unpark"))
	retryScript      = redis.NewScript(source("retry"))
	trimDeadScript   = redis.NewScript(source("trim_dead"))
	settleScript     = redis.NewScript(source("groups", "settle"))
	trimScript       = redis.NewScript(source("groups", "trim"))
	forgetScript     = redis.NewScript(source("groups", "forget"))
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
	case noKey(err):
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

// begin records that the handler of an entry begins, and returns the last ID of the stream, or "" if this consumer
// does not own the entry. deaths are those of the entry if this process dies.
func (g *group) begin(ctx context.Context, id string, deaths int) (latest string, err error) {
	return beginScript.Run(ctx, g.redis, []string{g.stream, g.failures}, g.name, g.consumer, deaths, id).Text()
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

// bytes returns the size of the entry's fields and values.
func (e entry) bytes() (n int64) {
	for _, field := range e.fields {
		n += int64(len(field))
	}
	return n
}

// beat extends the due times of ids and returns those that this consumer no longer owns.
func (g *group) beat(ctx context.Context, ids []string, visibilityMS int64) (lost []string, err error) {
	return beatScript.Run(ctx, g.redis, []string{g.stream, g.due}, g.arguments(visibilityMS, ids)...).StringSlice()
}

// arguments returns the group, the consumer, a number and IDs.
func (g *group) arguments(number any, ids []string) []any {
	args := append(make([]any, 0, 3+len(ids)), g.name, g.consumer, number)
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// ack acknowledges ids and returns those that this consumer, with at most window in flight, does not own.
func (g *group) ack(ctx context.Context, ids []string, window int) (refused []string, err error) {
	slices.SortFunc(ids, compareIDs)
	return ackScript.Run(ctx, g.redis, []string{g.stream, g.due, g.failures}, g.arguments(window, ids)...).StringSlice()
}

// compareIDs orders entry IDs of one stream, assuming that their timestamps have the same length.
func compareIDs(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

type giveBack struct {
	id      string
	key     string
	delayMS int64
	how     string // one of the following
	deaths  int    // before the delivery; -1 leaves them
}

const (
	failed   = "failed"   // counts as an attempt
	deferred = "deferred" // does not count
	early    = "early"    // was never handed out, and may be unparked before the delay ends
)

// label returns the entry's member of the parked index, "" without a key. Labels sort by key, kind and age.
// Those of failed attempts come before others that must wait.
func (b giveBack) label() string {
	switch {
	case b.key == "":
		return ""
	case b.how == early:
		return labelOf(b.key, mayUnpark) + sortable(b.id)
	case b.how == failed:
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

func (g *group) nack(ctx context.Context, backs []giveBack) (refused []string, err error) {
	return g.nackAs(ctx, g.consumer, backs)
}

// nackAs gives back entries that are pending under a name: the consumer's own, or that of parked entries.
func (g *group) nackAs(ctx context.Context, name string, backs []giveBack) (refused []string, err error) {
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
		backs[i] = giveBack{id: id, key: key, delayMS: ceilMS(delay), how: deferred, deaths: -1}
	}
	_, err := g.nackAs(ctx, parked, backs)
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

// leave removes a consumer from the group unless it has pending entries.
func (g *group) leave(ctx context.Context, consumer string) error {
	return leaveScript.Run(ctx, g.redis, []string{g.stream}, g.name, consumer).Err()
}

const pageBytes = 4 << 20 // approximate maximum size of one page of siblings

// readParked reads up to limit parked entries of one key and kind, the oldest after the given label.
func (g *group) readParked(
	ctx context.Context, key string, kind byte, after string, limit int,
) ([]parkedEntry, error) {
	from, to := "["+labelOf(key, kind), "("+labelOf(key, kind+1)
	if after != "" {
		from = "(" + after
	}
	reply, err := siblingsScript.Run(ctx, g.redis, []string{g.stream, g.parkedIndex, g.parkedLabels}, g.name, parked,
		from, to, limit, pageBytes).Slice()
	if err != nil {
		return nil, err
	}
	found := make([]parkedEntry, 0, len(reply))
	for _, raw := range reply {
		parts, ok := raw.([]any)
		if !ok || len(parts) != 3 {
			return nil, fmt.Errorf("siblings: %w", errReply)
		}
		var e parkedEntry
		e.id, _ = parts[0].(string)
		e.label, _ = parts[1].(string)
		e.fields, ok = texts(parts[2])
		if !ok || e.id == "" {
			return nil, fmt.Errorf("siblings: %w", errReply)
		}
		found = append(found, e)
	}
	return found, nil
}

type parkedEntry struct {
	entry
	label string
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

func noKey(err error) bool { return err != nil && strings.Contains(err.Error(), "no such key") }

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
