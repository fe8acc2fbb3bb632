package watch

import (
	"context"
	"crypto/rand"
	_ "embed" // the script
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

var (
	//go:embed due.lua
	dueSource string
	dueScript = redis.NewScript(dueSource)
)

// maxDue limits the repositories handled by one call, so that no script runs for long.
const maxDue = 1000

// EnqueueDue queues a poll of up to limit repositories, at most 1,000, whose poll is due by Redis' clock, and
// schedules the next poll of each one interval later, ± 10 %. It returns the number of polls queued. It is
// safe to call from any number of processes: a repository is polled at most once in nine tenths of its
// interval. Polls are queued with on_busy=skip, so they do not wait for a busy repository. While a
// repository's last poll is pending, no other is queued.
//
// A repository's interval is the shortest of its watches. Watches without an interval use defaultInterval; if that is
// 0 or less, they are not polled. A new defaultInterval takes effect after a repository's next poll.
//
// next is the time until the next poll is due: 0 if one is overdue, 30 days if none is scheduled.
func (r *Registry) EnqueueDue(
	ctx context.Context, limit int, defaultInterval time.Duration,
) (n int, next time.Duration, err error) {
	keys := []string{r.namespace.Poll(), r.namespace.Changes(), r.ofPrefix()}
	seed := 1 + mathrand.IntN(1<<31-2)
	reply, err := dueScript.Run(ctx, r.redis, keys, max(0, min(limit, maxDue)), max(0, defaultInterval.Milliseconds()),
		seed, rand.Text(), events.WorkersGroup).Int64Slice()
	if err != nil {
		return 0, 0, fmt.Errorf("queue due polls: %w", err)
	}
	if len(reply) != 3 {
		return 0, 0, fmt.Errorf("queue due polls: %w: %v", errReply, reply)
	}
	next = time.Duration(reply[2]) * time.Millisecond
	if next < 0 {
		next = time.Duration(maxInterval)
	}
	return int(reply[0]), next, nil
}

// Overdue returns how many repositories, among the first 1,000, have a poll that was due a minute ago, and since when the
// first is due. While a scheduler polls, there are none; it pauses while workers are behind. A watch without an interval
// is polled if usually is set.
func (r *Registry) Overdue(ctx context.Context, usually bool) (n int64, since time.Time, err error) {
	now, err := r.redis.Time(ctx).Result()
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("count overdue polls: %w", err)
	}
	due, err := r.redis.ZRangeByScoreWithScores(ctx, r.namespace.Poll(), &redis.ZRangeBy{
		Min: "-inf", Max: strconv.FormatInt(now.Add(-time.Minute).UnixMilli(), 10), Count: maxDue,
	}).Result()
	if err != nil || len(due) == 0 {
		return 0, time.Time{}, err
	}
	pipe := r.redis.Pipeline()
	sets := make([]*redis.SliceCmd, len(due))
	for i, z := range due {
		sets[i] = pipe.HMGet(ctx, r.ofPrefix()+z.Member.(string), "interval", "usual")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, time.Time{}, fmt.Errorf("count overdue polls: %w", err)
	}
	for i, set := range sets {
		interval, _ := set.Val()[0].(string)
		usual, _ := set.Val()[1].(string)
		if ms, _ := strconv.ParseFloat(interval, 64); ms <= 0 && (usual != "1" || !usually) {
			continue
		}
		if n++; since.IsZero() {
			since = time.UnixMilli(int64(due[i].Score)).UTC()
		}
	}
	return n, since, nil
}

// Interval is the time between polls of a remote. The zero Interval uses the setting poll-every.
type Interval time.Duration

// Never disables polling.
const Never Interval = -1

const (
	minInterval = Interval(time.Second)
	maxInterval = Interval(30 * 24 * time.Hour)
)

// ParseInterval parses a duration from 1s to 720h, "never" or "".
func ParseInterval(s string) (Interval, error) {
	switch s {
	case "":
		return 0, nil
	case "never":
		return Never, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || Interval(d) < minInterval || Interval(d) > maxInterval {
		return 0, errors.New(`want a duration from 1s to 720h, or "never"`)
	}
	return Interval(d), nil
}

// String returns the text that [ParseInterval] parses.
func (i Interval) String() string {
	switch i {
	case 0:
		return ""
	case Never:
		return "never"
	}
	return time.Duration(i).String()
}

// MarshalText implements [encoding.TextMarshaler].
func (i Interval) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (i *Interval) UnmarshalText(text []byte) (err error) {
	if *i, err = ParseInterval(string(text)); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}
