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

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Statistics describe a stream at one moment.
type Statistics struct {
	Stream string
	Length int64  // number of entries
	First  string // ID of the oldest entry; empty if there is none
	Last   string // ID of the newest entry
	Bytes  int64  // memory, as estimated by Redis; -1 if unknown
	Dead   int64  // number of letters in the dead stream, from any stream
	Groups []GroupStatistics
}

// GroupStatistics describe one consumer group.
type GroupStatistics struct {
	Name      string
	Lag       int64 // entries not yet read; -1 if Redis cannot tell
	Pending   int64 // entries read and not settled
	Parked    int64 // pending entries that wait to be redelivered
	Due       int64 // pending entries with a due time; if fewer than Pending, the next sweep adds the rest
	Late      int64 // entries past their due time; many mean too few or slow consumers
	Consumers int   // consumers, including missing ones
	// consumers with a heartbeat or read within LiveFor; before Redis 7.2 only a [Subscriber] counts as live
	// while it is idle
	Live   int
	Oldest time.Duration // age of the oldest unsettled entry, read or not; 0 if there is none

	OldestEntry string // its ID
}

// Group returns the statistics of the group called name.
func (s Statistics) Group(name string) (GroupStatistics, bool) {
	i := slices.IndexFunc(s.Groups, func(g GroupStatistics) bool { return g.Name == name })
	if i < 0 {
		return GroupStatistics{}, false
	}
	return s.Groups[i], true
}

// Stats reads the statistics of the stream called topic, whose groups keep their due times under prefix. A
// stream that does not exist counts as empty. It takes three round trips, whatever the stream's length, so
// the figures may be slightly inconsistent. Ages use Redis' clock, on Cluster that of the stream's node.
func Stats(ctx context.Context, client redis.UniversalClient, prefix, topic string) (Statistics, error) {
	s := Statistics{Stream: topic}
	pipe := client.Pipeline()
	clock := timeScript.Eval(ctx, pipe, []string{topic})
	length, dead := pipe.XLen(ctx, topic), pipe.XLen(ctx, prefix+"dead")
	first, last := pipe.XRangeN(ctx, topic, "-", "+", 1), pipe.XRevRangeN(ctx, topic, "+", "-", 1)
	groups := pipe.XInfoGroups(ctx, topic)
	_, err := pipe.Exec(ctx)
	if err != nil && !noStream(err) {
		return Statistics{}, fmt.Errorf("statistics of %s: %w", topic, err)
	}
	now, err := timeOf(clock)
	if err != nil {
		return Statistics{}, fmt.Errorf("statistics of %s: %w", topic, err)
	}
	s.Length, s.Dead, s.Bytes = length.Val(), dead.Val(), memoryUsage(ctx, client, topic)
	if entries := first.Val(); len(entries) > 0 {
		s.First = entries[0].ID
	}
	if entries := last.Val(); len(entries) > 0 {
		s.Last = entries[0].ID
	}
	if s.Groups, err = groupStats(ctx, client, prefix, s, groups.Val(), now); err != nil {
		return Statistics{}, fmt.Errorf("statistics of %s: %w", topic, err)
	}
	return s, nil
}

// memoryUsage returns the memory of a stream as Redis estimates it, or -1 if Redis refuses the command.
func memoryUsage(ctx context.Context, client redis.UniversalClient, topic string) int64 {
	bytes, err := client.MemoryUsage(ctx, topic, 5).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0
	case err != nil:
		return -1
	}
	return bytes
}

func groupStats(
	ctx context.Context, client redis.UniversalClient, prefix string, s Statistics, infos []redis.XInfoGroup,
	now time.Time,
) ([]GroupStatistics, error) {
	if len(infos) == 0 {
		return nil, nil
	}
	type groupQuery struct {
		pending   *redis.XPendingExtCmd
		unread    *redis.XMessageSliceCmd
		consumers *redis.XInfoConsumersCmd
		due, late *redis.IntCmd
	}
	queries := make([]groupQuery, len(infos))
	pipe := client.Pipeline()
	for i, info := range infos {
		key := DueKey(prefix, s.Stream, info.Name)
		queries[i] = groupQuery{
			// Entries trimmed while pending no longer count.
			pending: pipe.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: s.Stream, Group: info.Name,
				Start: cmp.Or(s.First, "-"), End: "+", Count: 1}),
			unread:    pipe.XRangeN(ctx, s.Stream, "("+info.LastDeliveredID, "+", 1),
			consumers: pipe.XInfoConsumers(ctx, s.Stream, info.Name),
			due:       pipe.ZCard(ctx, key),
			late:      pipe.ZCount(ctx, key, "-inf", strconv.FormatInt(now.UnixMilli(), 10)),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil && !noGroup(err) && !noStream(err) { // the group may be gone by now
		return nil, err
	}
	groups := make([]GroupStatistics, len(infos))
	for i, info := range infos {
		q, g := queries[i], &groups[i]
		*g = GroupStatistics{Name: info.Name, Pending: info.Pending, Due: q.due.Val(), Late: q.late.Val()}
		for _, c := range q.consumers.Val() {
			if c.Name == parked {
				g.Parked = c.Pending
			} else {
				g.Consumers++
				if c.Idle < LiveFor {
					g.Live++
				}
			}
		}
		pending, unread := q.pending.Val(), q.unread.Val()
		g.Lag = lag(info, s.Length, len(unread) > 0)
		switch {
		case s.Length == 0:
		case len(pending) > 0:
			g.OldestEntry = pending[0].ID
		case len(unread) > 0:
			g.OldestEntry = unread[0].ID
		}
		if added := events.EntryTime(g.OldestEntry); !added.IsZero() {
			g.Oldest = max(0, now.Sub(added))
		}
	}
	slices.SortFunc(groups, func(a, b GroupStatistics) int { return strings.Compare(a.Name, b.Name) })
	return groups, nil
}

// lag corrects the lag that Redis reports: Redis before 7 reports none, the embedded one reports the stream's
// length, and Redis 7.0 counts trimmed entries.
func lag(info redis.XInfoGroup, length int64, unread bool) int64 {
	unheard := info.LastDeliveredID == "0-0" || info.LastDeliveredID == "0"
	switch {
	case !unread:
		return 0
	case unheard:
		return length
	case info.Lag < 0 || info.EntriesRead == 0:
		return -1
	}
	return min(info.Lag, length)
}

func noStream(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && strings.Contains(reply.Error(), "no such key")
}

// GroupCursor returns the ID of the last entry that a group has read, "" if there is no such group.
func GroupCursor(ctx context.Context, client redis.UniversalClient, topic, group string) (string, error) {
	groups, err := client.XInfoGroups(ctx, topic).Result()
	if err != nil && !noStream(err) {
		return "", fmt.Errorf("read the groups of %s: %w", topic, err)
	}
	for _, g := range groups {
		if g.Name == group {
			return g.LastDeliveredID, nil
		}
	}
	return "", nil
}

// Consumers returns the consumers of a group, including those that crashed, the most recently active
// first. A group that does not exist has none. A consumer is live if it has been idle for less than
// [LiveFor]; before Redis 7.2 only a [Subscriber] is live while nothing arrives.
func Consumers(ctx context.Context, client redis.UniversalClient, topic, group string) ([]redis.XInfoConsumer, error) {
	infos, err := client.XInfoConsumers(ctx, topic, group).Result()
	if err != nil && !noGroup(err) && !noStream(err) {
		return nil, fmt.Errorf("consumers of %s: %w", group, err)
	}
	all := slices.DeleteFunc(infos, func(c redis.XInfoConsumer) bool { return c.Name == parked })
	slices.SortFunc(all, func(a, b redis.XInfoConsumer) int {
		return cmp.Or(cmp.Compare(a.Idle, b.Idle), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// RemoveConsumer removes a consumer from a group, unless entries are pending for it, and reports whether it is gone. A
// live one comes back with its next heartbeat.
func RemoveConsumer(ctx context.Context, client redis.UniversalClient, topic, group, name string) (bool, error) {
	gone, err := leaveScript.Run(ctx, client, []string{topic}, group, name).Bool()
	if err != nil {
		return false, fmt.Errorf("remove consumer %s of %s: %w", name, group, err)
	}
	return gone, nil
}

// ReadWatermarks returns the IDs of the newest entry of the stream called topic, "0-0" if there is none, and
// of the oldest entry that at least one group has not settled, read or not, "" if there is none. In a stream
// without groups every entry counts as settled; a stream that does not exist counts as empty. It takes one
// round trip and its cost is proportional to the number of groups.
func ReadWatermarks(
	ctx context.Context, client redis.UniversalClient, topic string,
) (latest, unsettled string, err error) {
	reply, err := watermarksScript.Run(ctx, client, []string{topic}).StringSlice()
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("%w: %d parts", errReply, len(reply))
	}
	if err != nil {
		return "", "", fmt.Errorf("watermarks of %s: %w", topic, err)
	}
	return reply[0], reply[1], nil
}

// Waits reports whether an entry of the stream called topic that has a key may still wait for a group: whether one is
// parked, or whether any entry, whatever its key, has been unread or in flight since a time of Redis' clock.
func Waits(
	ctx context.Context, client redis.UniversalClient, prefix, topic, group, key string, since time.Time,
) (bool, error) {
	until, after := strconv.FormatInt(since.UnixMilli(), 10), "0-0"
	pipe := client.Pipeline()
	waiting := pipe.ZRangeByLex(ctx, indexKey(prefix, "parked", topic, group),
		&redis.ZRangeBy{Min: "[" + key + "\x00", Max: "(" + key + "\x01", Count: 1})
	groups, consumers := pipe.XInfoGroups(ctx, topic), pipe.XInfoConsumers(ctx, topic, group)
	if _, err := pipe.Exec(ctx); err != nil && !noStream(err) && !noGroup(err) {
		return false, fmt.Errorf("see whether entries of %s wait: %w", topic, err)
	}
	if i := slices.IndexFunc(groups.Val(), func(g redis.XInfoGroup) bool { return g.Name == group }); i >= 0 {
		after = groups.Val()[i].LastDeliveredID
	}
	unread, err := client.XRangeN(ctx, topic, "("+after, until, 1).Result()
	waits := len(waiting.Val())+len(unread) > 0
	for _, c := range consumers.Val() {
		if waits || err != nil {
			break
		}
		if c.Name == parked || c.Pending == 0 {
			continue
		}
		var inFlight []redis.XPendingExt
		inFlight, err = client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: topic, Group: group, Consumer: c.Name, Start: "-", End: until, Count: 1,
		}).Result()
		waits = len(inFlight) > 0
	}
	return waits, err
}
