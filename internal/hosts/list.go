package hosts

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Host says who waits for a host, as the API, the command line and the dashboard show it.
type Host struct {
	Host    string    `json:"host"`
	Waiting int       `json:"waiting"`             // repositories
	Reason  Reason    `json:"reason,omitempty"`    // "" if nobody has to wait for the host
	Until   time.Time `json:"until,omitzero"`      // end of the longest block; zero if there is none
	Limited []Limited `json:"limited_credentials"` // whose requests the host does not answer, or limits
}

// Limited is a credential that is blocked.
type Limited struct {
	Credential string    `json:"credential"` // empty for requests without one
	Until      time.Time `json:"until"`      // by the local clock
}

// Busy returns the hosts that are limited or waited for.
func Busy(all []Host) (busy []Host) {
	for _, h := range all {
		if h.Waiting > 0 || h.Reason != "" {
			busy = append(busy, h)
		}
	}
	return busy
}

// Reader reads the state that all processes share. It needs no [Limiter].
type Reader struct {
	Redis  redis.UniversalClient
	Prefix string
}

const listed = 200

// List returns the hosts used within a day, of at most the 200 targets last used: blocked ones first, then those with
// the most waiters.
func (r Reader) List(ctx context.Context) ([]Host, error) {
	names, err := r.Redis.ZRevRange(ctx, r.Prefix+indexSuffix, 0, listed-1).Result()
	if err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	slices.Sort(names) // those of a host are adjacent
	pipe := r.Redis.Pipeline()
	clock := pipe.Time(ctx)
	states, waiting := make([]*redis.SliceCmd, len(names)), make([]*redis.IntCmd, len(names))
	for i, name := range names {
		key := r.Prefix + hostInfix + name
		states[i] = pipe.HMGet(ctx, key, "blocked", "reason", "allowed")
		waiting[i] = pipe.ZCount(ctx, key+queueSuffix, "0", "+inf")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the limits of hosts: %w", err)
	}
	list := []Host{}
	for i, name := range names {
		t, ok := ParseTarget(name)
		if !ok {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Host != t.Host {
			list = append(list, Host{Host: t.Host, Limited: []Limited{}})
		}
		var state struct {
			Blocked float64 `redis:"blocked"`
			Reason  string  `redis:"reason"`
			Allowed float64 `redis:"allowed"`
		}
		_ = states[i].Scan(&state) // nothing if it has expired
		h := &list[len(list)-1]
		h.Waiting += int(waiting[i].Val())
		left := time.UnixMilli(int64(state.Blocked)).Sub(clock.Val())
		if left <= 0 && state.Allowed > 0 {
			h.Reason = cmp.Or(h.Reason, SlowStart)
		}
		if left <= 0 {
			continue
		}
		until := time.Now().Add(left).UTC().Truncate(time.Second) // conversions to the local clock differ by milliseconds
		h.Limited = append(h.Limited, Limited{t.Credential, until})
		if until.After(h.Until) {
			h.Reason, h.Until = Reason(state.Reason), until
		}
	}
	slices.SortFunc(list, func(a, b Host) int {
		return cmp.Or(cmp.Compare(min(1, len(b.Limited)), min(1, len(a.Limited))), cmp.Compare(b.Waiting, a.Waiting),
			cmp.Compare(a.Host, b.Host))
	})
	return list, nil
}

// Lifted is a block that was lifted.
type Lifted struct {
	Host   string `json:"host"`
	Reason Reason `json:"reason"`
	Limited
	Waiting []string `json:"-"` // keys of the first repositories that wait
}

const hastened = 64 // repositories that ask at once after a block is lifted; the others within 90 s

// Clear lifts the blocks of a host for all its credentials, or for one if not nil, and returns them.
// Afterwards the number of repositories begins with one. The caller makes the changes of Waiting due.
func (r Reader) Clear(ctx context.Context, name string, credential *string) (lifted []Lifted, err error) {
	all, err := r.List(ctx)
	i := slices.IndexFunc(all, func(h Host) bool { return h.Host == name })
	if i < 0 {
		return nil, err
	}
	for _, block := range all[i].Limited {
		if credential != nil && *credential != block.Credential {
			continue
		}
		key := r.Prefix + hostInfix + Target{name, block.Credential}.String()
		pipe := r.Redis.TxPipeline()
		reason := pipe.HGet(ctx, key, "reason")
		pipe.HSet(ctx, key, "blocked", 0, "strikes", 0)
		waiting := pipe.ZRange(ctx, key+queueSuffix, 0, hastened-1)
		if _, err := pipe.Exec(ctx); err != nil {
			return lifted, fmt.Errorf("lift the limits of %s: %w", name, err)
		}
		lifted = append(lifted, Lifted{name, Reason(reason.Val()), block, waiting.Val()})
	}
	return lifted, nil
}
