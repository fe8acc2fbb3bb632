package hosts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Status is the state of one target that all processes share.
type Status struct {
	Target
	Waiting int       // repositories
	Reason  Reason    // "" if nobody has to wait for the host
	Until   time.Time // end of the block by the local clock; zero if there is none
}

// Reader reads the state that all processes share. It needs no [Limiter].
type Reader struct {
	Redis  redis.UniversalClient
	Prefix string
}

const listed = 200

// List returns the state of the targets used within a day, of at most the 200 last used, by host.
func (r Reader) List(ctx context.Context) ([]Status, error) {
	names, err := r.Redis.ZRevRange(ctx, r.Prefix+indexSuffix, 0, listed-1).Result()
	if err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	pipe := r.Redis.Pipeline()
	clock, all := pipe.Time(ctx), make([]Status, 0, len(names))
	var states []*redis.SliceCmd
	var waiting []*redis.IntCmd
	for _, name := range names {
		if t, ok := ParseTarget(name); ok {
			all = append(all, Status{Target: t})
			states = append(states, pipe.HMGet(ctx, r.Prefix+hostInfix+name, "blocked", "reason", "allowed"))
			waiting = append(waiting, pipe.ZCard(ctx, r.Prefix+hostInfix+name+":due"))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the limits of hosts: %w", err)
	}
	for i := range all {
		var values [3]string
		for n, value := range states[i].Val() {
			values[n], _ = value.(string)
		}
		blocked, _ := strconv.ParseFloat(values[0], 64)
		allowed, _ := strconv.ParseFloat(values[2], 64)
		all[i].Waiting = int(waiting[i].Val())
		switch left := time.UnixMilli(int64(blocked)).Sub(clock.Val()); {
		case left > 0:
			all[i].Reason, all[i].Until = Reason(values[1]), time.Now().Add(left)
		case allowed > 0:
			all[i].Reason = SlowStart
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Credential, b.Credential))
	})
	return all, nil
}

// Clear lifts the blocks of a host for all its credentials, or for one if not nil, and returns them.
// Afterwards the number of jobs begins with one.
func (r Reader) Clear(ctx context.Context, name string, credential *string) (lifted []Status, err error) {
	all, err := r.List(ctx)
	for _, s := range all {
		if s.Host != name || s.Until.IsZero() || credential != nil && *credential != s.Credential {
			continue
		}
		if err := r.Redis.HSet(ctx, r.Prefix+hostInfix+s.Target.String(), "blocked", 0, "strikes", 0, "struck",
			0).Err(); err != nil {
			return lifted, fmt.Errorf("lift the limits of %s: %w", name, err)
		}
		lifted = append(lifted, s)
	}
	return lifted, err
}
