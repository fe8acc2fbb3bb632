package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Host is the state of one host, for status and metrics.
type Host struct {
	Name    string
	Limit   int       // permits over all processes at the moment
	InUse   int       // including those reserved for woken repositories
	Waiting int       // repositories
	Reason  Reason    // of the host's block
	Until   time.Time // end of the host's block by the local clock; zero if there is none
	Waits   Reason    // why the first repositories wait, unless the host is blocked
	Limited []CredentialStatus
}

// CredentialStatus is a credential that the host limits.
type CredentialStatus struct {
	Name  string
	Until time.Time // by the local clock
}

// Why returns why repositories must wait for the host or for one of its credentials, or "" if none must. until is the end
// of the longest block, or zero.
func (h Host) Why() (reason Reason, until time.Time) {
	if h.Reason != "" {
		return h.Reason, h.Until
	}
	for _, c := range h.Limited {
		if c.Until.After(until) {
			reason, until = RateLimit, c.Until
		}
	}
	return cmp.Or(reason, h.Waits), until
}

// Idle reports whether no request to the host is in flight or waiting, and nothing is limited.
func (h Host) Idle() bool {
	return h.InUse == 0 && h.Waiting == 0 && h.Reason == "" && len(h.Limited) == 0
}

// Reader reads the state that all processes share. It needs no Budgets. Redis and Prefix are required.
type Reader struct {
	Redis     redis.UniversalClient
	Prefix    string
	Limit     int               // as in Config, for hosts that have not answered yet; default 16
	Overrides map[string]Limits // per host, as in Config

	offset int64 // added to both clocks, ms; only tests set it
}

const listHosts = 200

// List returns the hosts used within a day, at most the 200 last used, by name. It costs two round trips.
func (r Reader) List(ctx context.Context) ([]Host, error) {
	names, err := r.Redis.ZRevRange(ctx, r.Prefix+seenSuffix, 0, listHosts-1).Result()
	if err != nil {
		return nil, fmt.Errorf("list hosts: %w", err)
	}
	slices.Sort(names)
	before := time.Now().Add(time.Duration(r.offset) * time.Millisecond)
	replies, err := r.read(ctx, names)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		if err = listScript.Load(ctx, r.Redis).Err(); err == nil {
			replies, err = r.read(ctx, names)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the limits of hosts: %w", err)
	}
	all := make([]Host, len(names))
	for i, name := range names {
		if all[i], err = parseHost(decode(name), replies[i].(*redis.Cmd), before); err != nil {
			return nil, fmt.Errorf("read the limits of %s: %w", decode(name), err)
		}
	}
	return all, nil
}

func (r Reader) read(ctx context.Context, names []string) ([]redis.Cmder, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return r.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, name := range names {
			keys := []string{r.Prefix + hostInfix + name, r.Prefix + dueSuffix}
			maximum := cmp.Or(r.Overrides[decode(name)].Permits, r.Limit, defaultLimit)
			listScript.EvalSha(ctx, pipe, keys, r.offset, maximum, name, "")
		}
		return nil
	})
}

// parseHost parses a reply of list.lua.
func parseHost(name string, cmd *redis.Cmd, before time.Time) (Host, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return Host{}, err
	}
	if len(reply) != 8 {
		return Host{}, errors.New("unexpected reply of list.lua")
	}
	now := number(reply[5])
	h := Host{
		Name: name, Limit: int(number(reply[0])), InUse: int(number(reply[1])), Waiting: int(number(reply[2])),
		Reason: Reason(text(reply[3])), Until: moment(before, now, number(reply[4])), Waits: Reason(text(reply[7])),
	}
	limited, _ := reply[6].([]any)
	for pair := range slices.Chunk(limited, 2) {
		h.Limited = append(h.Limited, CredentialStatus{decode(text(pair[0])), moment(before, now, parse(text(pair[len(pair)-1])))})
	}
	return h, nil
}
