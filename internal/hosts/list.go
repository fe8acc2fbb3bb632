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

// status is the state of one target.
type status struct {
	Target
	waiting int
	reason  Reason
	until   time.Time // end of the block; zero if there is none
}

const listed = 200

// List returns the hosts used within a day, of at most the 200 targets last used: blocked ones first, then those with
// the most waiters.
func (r Reader) List(ctx context.Context) ([]Host, error) {
	all, err := r.read(ctx)
	list := []Host{}
	for _, s := range all {
		if n := len(list); n == 0 || list[n-1].Host != s.Host {
			list = append(list, Host{Host: s.Host, Limited: []Limited{}})
		}
		h := &list[len(list)-1]
		h.Waiting += s.waiting
		if s.until.IsZero() {
			h.Reason = cmp.Or(h.Reason, s.reason)
			continue
		}
		h.Limited = append(h.Limited, Limited{s.Credential, s.until})
		if s.until.After(h.Until) {
			h.Reason, h.Until = s.reason, s.until
		}
	}
	slices.SortStableFunc(list, func(a, b Host) int {
		return cmp.Or(cmp.Compare(min(1, len(b.Limited)), min(1, len(a.Limited))), cmp.Compare(b.Waiting, a.Waiting))
	})
	return list, err
}

// read returns the state of the targets, by host.
func (r Reader) read(ctx context.Context) ([]status, error) {
	names, err := r.Redis.ZRevRange(ctx, r.Prefix+indexSuffix, 0, listed-1).Result()
	if err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	pipe := r.Redis.Pipeline()
	clock, all := pipe.Time(ctx), make([]status, 0, len(names))
	var states []*redis.SliceCmd
	var waiting []*redis.IntCmd
	for _, name := range names {
		if t, ok := ParseTarget(name); ok {
			all = append(all, status{Target: t})
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
		all[i].waiting = int(waiting[i].Val())
		switch left := time.UnixMilli(int64(blocked)).Sub(clock.Val()); {
		case left > 0: // its conversion to the local clock differs by milliseconds between reads
			all[i].reason, all[i].until = Reason(values[1]), time.Now().Add(left).UTC().Truncate(time.Second)
		case allowed > 0:
			all[i].reason = SlowStart
		}
	}
	slices.SortFunc(all, func(a, b status) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Credential, b.Credential))
	})
	return all, nil
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
// Afterwards the number of jobs begins with one. The caller makes the changes of Waiting due.
func (r Reader) Clear(ctx context.Context, name string, credential *string) (lifted []Lifted, err error) {
	all, err := r.read(ctx)
	for _, s := range all {
		if s.Host != name || s.until.IsZero() || credential != nil && *credential != s.Credential {
			continue
		}
		key := r.Prefix + hostInfix + s.Target.String()
		pipe := r.Redis.TxPipeline()
		pipe.HSet(ctx, key, "blocked", 0, "strikes", 0, "struck", 0)
		waiting := pipe.ZRange(ctx, key+":queue", 0, hastened-1)
		if _, err := pipe.Exec(ctx); err != nil {
			return lifted, fmt.Errorf("lift the limits of %s: %w", name, err)
		}
		lifted = append(lifted, Lifted{name, s.reason, Limited{s.Credential, s.until}, waiting.Val()})
	}
	return lifted, err
}
