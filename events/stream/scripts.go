package stream

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The scripts. The head of each file says what it takes, returns and refuses.
var (
	//go:embed take.lua
	takeSource string
	//go:embed beat.lua
	beatSource string
	//go:embed ack.lua
	ackSource string
	//go:embed nack.lua
	nackSource string
	//go:embed groups.lua
	groupsSource string
	//go:embed settle.lua
	settleSource string
	//go:embed sweep.lua
	sweepSource string
	//go:embed leave.lua
	leaveSource string
	//go:embed siblings.lua
	siblingsSource string
	//go:embed unpark.lua
	unparkSource string

	takeScript   = redis.NewScript(takeSource)
	beatScript   = redis.NewScript(beatSource)
	ackScript    = redis.NewScript(ackSource)
	nackScript   = redis.NewScript(nackSource)
	settleScript = redis.NewScript(groupsSource + settleSource)
	sweepScript  = redis.NewScript(sweepSource)
	leaveScript  = redis.NewScript(leaveSource)

	siblingsScript = redis.NewScript(siblingsSource)
	unparkScript   = redis.NewScript(unparkSource)
)

// parked is the consumer that entries are pending under while they wait to be delivered again. No
// Subscriber takes that name, so nobody owns them until their due moment.
const parked = "(parked)"

// errReply means that a script has run, and said what none here says.
var errReply = errors.New("stream: a script's reply makes no sense")

// group is one consumer of one group on one stream: what every script needs to know.
type group struct {
	redis        redis.UniversalClient
	stream       string
	due          string // ZSET: entry id -> the ms at which it is due again
	failures     string // HASH: entry id -> failed attempts
	parkedIndex  string // ZSET of labels, all scores 0: parked entries by key
	parkedLabels string // HASH: entry id -> label
	name         string
	consumer     string
}

// create makes the group, and the stream with it, to be read from its first entry on. An existing
// group is left as it is.
func (g *group) create(ctx context.Context) error {
	err := g.redis.XGroupCreateMkStream(ctx, g.stream, g.name, "0").Err()
	if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
		return fmt.Errorf("create group %s of stream %s: %w", g.name, g.stream, err)
	}
	return nil
}

// latest returns the id last given to an entry of the stream.
func (g *group) latest(ctx context.Context) (string, error) {
	info, err := g.redis.XInfoStream(ctx, g.stream).Result()
	if err != nil {
		return "", err
	}
	return info.LastGeneratedID, nil
}

// entry is what the take script returns of one.
type entry struct {
	id     string
	failed int      // attempts
	times  int      // delivered, this one included
	origin string   // "new", "parked" or ":" and the consumer under whom it lapsed
	fields []string // name, value, name, value, …
}

type takeResult struct {
	entries []entry
	next    int64  // ms until the earliest due moment, -1 without one
	last    string // id of the stream's last entry
}

// take reads up to count entries, of which up to share may come from the due index.
func (g *group) take(ctx context.Context, count, share int, visibilityMS int64) (takeResult, error) {
	reply, err := takeScript.Run(ctx, g.redis, []string{g.stream, g.due, g.failures, g.parkedIndex, g.parkedLabels},
		g.name, g.consumer, parked, count, share, visibilityMS).Slice()
	if err != nil {
		return takeResult{}, err
	}
	var t takeResult
	ok := len(reply) == 4
	if ok {
		again, okAgain := reply[0].([]any)
		fresh, okFresh := reply[1].([]any)
		t.entries = make([]entry, 0, len(again)+len(fresh))
		ok = okAgain && okFresh
		for _, raw := range again {
			e, sound := parseEntry(raw, 5)
			ok = ok && sound
			t.entries = append(t.entries, e)
		}
		for _, raw := range fresh {
			e, sound := parseEntry(raw, 2)
			ok = ok && sound
			t.entries = append(t.entries, e)
		}
		t.next, _ = reply[2].(int64)
		t.last, _ = reply[3].(string)
	}
	if !ok || t.last == "" {
		return takeResult{}, fmt.Errorf("take: %w", errReply)
	}
	return t, nil
}

// parseEntry reads one entry of so many parts: id and fields, and what sets it apart from a new one.
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
		times, _ := parts[3].(int64)
		e.failed, e.times = int(failed), int(times)
		e.origin, _ = parts[4].(string)
	}
	return e, ok && e.id != "" && e.origin != ""
}

// beat pushes on the due moments of ids and returns those that are not ours any more.
func (g *group) beat(ctx context.Context, ids []string, visibilityMS int64) (lost []string, err error) {
	args := make([]any, 0, 3+len(ids))
	args = append(args, g.name, g.consumer, visibilityMS)
	for _, id := range ids {
		args = append(args, id)
	}
	return beatScript.Run(ctx, g.redis, []string{g.stream, g.due}, args...).StringSlice()
}

// ack acknowledges ids, of a consumer that has at most window entries in flight, and returns those that
// are not ours any more.
func (g *group) ack(ctx context.Context, ids []string, window int) (refused []string, err error) {
	slices.SortFunc(ids, compareIDs)
	args := make([]any, 0, 3+len(ids))
	args = append(args, g.name, g.consumer, window)
	for _, id := range ids {
		args = append(args, id)
	}
	return ackScript.Run(ctx, g.redis, []string{g.stream, g.due, g.failures}, args...).StringSlice()
}

// compareIDs orders entry ids of one stream; ones that are not alike in length it orders by that.
func compareIDs(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// giveBack is one entry to be delivered again.
type giveBack struct {
	id      string
	key     string
	delayMS int64
	how     string // one of the following
}

const (
	failed   = "failed"   // counts as an attempt
	deferred = "deferred" // does not
	early    = "early"    // never had its turn, and may have it before the delay is over
)

// label is how a parked entry with a key stands on the shelf; one without is not put there. Labels are
// ordered by key, then those that may come early, then by age.
func (b giveBack) label() string {
	switch {
	case b.key == "":
		return ""
	case b.how == early:
		return labelOf(b.key, mayUnpark) + sortable(b.id)
	}
	return labelOf(b.key, mustWait) + sortable(b.id)
}

// sortable is an entry's id with a letter before each number that stands for its length, so that the
// order of the bytes is that of the numbers: 1795223511284-10 is n1795223511284-c10.
func sortable(id string) string {
	ms, seq, _ := strings.Cut(id, "-")
	return string(rune('a'+len(ms))) + ms + "-" + string(rune('a'+len(seq))) + seq
}

const (
	mayUnpark = '+'
	mustWait  = '-'
)

func labelOf(key string, kind byte) string { return key + "\x00" + string(kind) }

// nack parks entries and returns the ids of those that are not ours any more.
func (g *group) nack(ctx context.Context, backs []giveBack) (refused []string, err error) {
	args := make([]any, 0, 3+4*len(backs))
	args = append(args, g.name, g.consumer, parked)
	for _, b := range backs {
		args = append(args, b.id, b.delayMS, b.how, b.label())
	}
	return nackScript.Run(ctx, g.redis, []string{g.stream, g.due, g.failures, g.parkedIndex, g.parkedLabels}, args...).StringSlice()
}

// sweep repairs the index for one batch of pending entries and returns where to go on, if anywhere.
func (g *group) sweep(ctx context.Context, from string, visibilityMS int64) (repaired int64, next string, err error) {
	const batch = 1000
	reply, err := sweepScript.Run(ctx, g.redis, []string{g.stream, g.due}, g.name, visibilityMS, from, batch).Slice()
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

// pageBytes is about how much of entries' fields siblings are read for at once. Payloads come from anywhere.
const pageBytes = 4 << 20

// readParked reads up to limit entries of one key from the shelf, of one kind of label: the oldest of those
// after the label, or the newest of all.
func (g *group) readParked(ctx context.Context, key string, kind byte, after string, newest bool, limit int) ([]parkedEntry, error) {
	from, to := "["+labelOf(key, kind), "("+labelOf(key, kind+1)
	if after != "" {
		from = "(" + after
	}
	reverse := 0
	if newest {
		reverse = 1
	}
	reply, err := siblingsScript.Run(ctx, g.redis, []string{g.stream, g.parkedIndex, g.parkedLabels}, g.name, parked, from, to, limit, reverse, pageBytes).Slice()
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

// parkedEntry is an entry on the shelf.
type parkedEntry struct {
	entry
	label string
}

// ripen makes up to limit entries due that are parked only because their key had its share. If it
// returns less than limit, there are no more.
func (g *group) unpark(ctx context.Context, key string, limit int) (int, error) {
	return unparkScript.Run(ctx, g.redis, []string{g.stream, g.due, g.parkedIndex, g.parkedLabels}, g.name, parked,
		"["+labelOf(key, mayUnpark), "("+labelOf(key, mayUnpark+1), labelOf(key, mustWait), limit).Int()
}

// texts is a reply that is a list of names and values.
func texts(raw any) ([]string, bool) {
	list, ok := raw.([]any)
	fields := make([]string, len(list))
	for i, f := range list {
		fields[i], _ = f.(string)
	}
	return fields, ok && len(list)%2 == 0
}
