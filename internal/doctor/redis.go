package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/volume"
)

const maxClockSkew = 2 * time.Second

// examineRedis checks the configured Redis.
func examineRedis(ctx context.Context, cfg config.Config, needsVolume bool) (checks Checks) {
	if cfg.Redis == "" {
		return checks.with("redis", warned("not configured: a single worker would use an embedded Redis and lose its "+
			"data at the end; set --redis"))
	}
	server, err := cfg.RedisServer()
	if err != nil {
		return checks.with("redis", refused("%w", err))
	}
	client := server.Open()
	defer client.Close()
	key := string(cfg.Namespace())
	node, err := redisx.NodeOf(ctx, client, key) // commands without a key examine it
	if err != nil {
		return checks.with("redis", refused("%w", redisx.Explain(server, err)))
	}
	at, sent, took, err := readClock(ctx, node)
	if err != nil {
		return checks.with("redis", refused("%w", redisx.Explain(server, err)))
	}
	latency := passed("%s answers in %v", server, took.Round(10*time.Microsecond))
	if took > 20*time.Millisecond {
		latency = warned("%s; every change needs about ten round trips: move it closer to the workers", latency.Text)
	}
	checks = checks.with("redis", latency)
	checks = checks.with("redis clock", RedisClock(at, sent, took))
	info, err := node.Info(ctx, "server", "replication", "persistence", "memory").Result()
	if err != nil {
		checks = checks.with("redis version",
			warned("unknown, because INFO is refused: permit it, or make sure that it is 6.2 or later"))
	} else {
		checks = checks.with("redis version", RedisVersion(redisx.InfoField(info, "redis_version")))
		role := passed("%s", cmp.Or(redisx.InfoField(info, "role"), "-"))
		if role.Text != "master" && role.Text != "-" {
			role = refused("%s; use the master, or the Sentinels with redis+sentinel://", role.Text)
		}
		checks = checks.with("redis role", role)
	}
	checks = checks.with("redis persistence", persistence(ctx, client, key, info))
	checks = checks.with("redis memory", eviction(ctx, node, info))
	checks = checks.with("redis scripts", writable(ctx, client, cfg))
	if needsVolume {
		checks = checks.with("volume of this prefix", sameVolume(ctx, client, cfg))
	}
	return checks
}

// readClock returns Redis' time, when it was asked for, and how long the answer took. The fastest of five
// answers counts, so that a single slow one is not reported.
func readClock(ctx context.Context, node redis.Cmdable) (at, sent time.Time, took time.Duration, err error) {
	took = time.Hour
	for range 5 {
		began := time.Now()
		now, err := node.Time(ctx).Result()
		if err != nil {
			return at, sent, took, err
		}
		if d := time.Since(began); d < took {
			at, sent, took = now, began, d
		}
	}
	return at, sent, took, nil
}

// RedisClock compares Redis' clock with the local time at the middle of the call. at is the time that Redis returned.
func RedisClock(at, sent time.Time, took time.Duration) Check {
	apart := at.Sub(sent.Add(took / 2))
	if apart.Abs() > took/2+maxClockSkew {
		return warned("differs by %v from this machine's, which affects logs and retention but not leases; "+
			"run NTP on both", apart.Round(time.Millisecond))
	}
	return passed("within %v of this machine's", (took/2 + maxClockSkew).Round(time.Millisecond))
}

// RedisVersion checks a version as INFO reports it. Redis 6.2 has XAUTOCLAIM and trims by id, 7.0 reports the
// lag of a group.
func RedisVersion(v string) Check {
	var major, minor int
	_, _ = fmt.Sscanf(v, "%d.%d", &major, &minor) // there may be no minor version
	switch {
	case v == "":
		return warned("unknown; make sure that it is compatible with Redis 6.2 or later")
	case major < 6 || major == 6 && minor < 2:
		return refused("%s is too old; upgrade to 6.2 or later", v)
	case major < 7:
		return warned("%s does not report the lag of groups; upgrade to 7.0 or later for that", v)
	}
	return passed("%s", v)
}

func persistence(ctx context.Context, client redis.UniversalClient, key, info string) Check {
	for _, field := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if redisx.InfoField(info, field) == "err" {
			return refused("%s is err: Redis could not write to its disk; check that disk and Redis' log", field)
		}
	}
	switch durability := redisx.ReadDurability(ctx, client, key); durability.Level {
	case redisx.Durable:
		return passed("appendonly, appendfsync always: a crash of its machine loses nothing that was confirmed")
	case redisx.WeaklyDurable:
		return warned("%s; set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no to lose nothing "+
			"that was confirmed", durability.Reason)
	default:
		return warned("%s; make sure that appendonly is yes and appendfsync is always", durability.Reason)
	}
}

func eviction(ctx context.Context, client redis.UniversalClient, info string) Check {
	set, _ := client.ConfigGet(ctx, "maxmemory*").Result()
	policy, known := set["maxmemory-policy"]
	limit, _ := strconv.ParseInt(set["maxmemory"], 10, 64)
	used, _ := strconv.ParseInt(redisx.InfoField(info, "used_memory"), 10, 64)
	switch {
	case !known:
		return warned("could not be determined, because CONFIG is refused; make sure that maxmemory-policy is noeviction")
	case policy == "noeviction" && limit > 0 && used > limit/5*4:
		return warned("%s of maxmemory's %s used: once full, Redis refuses writes; raise maxmemory",
			volume.BytesText(used), volume.BytesText(limit))
	case policy == "noeviction":
		return passed("maxmemory-policy is noeviction")
	case limit == 0:
		return warned("maxmemory-policy is %s, harmless only without maxmemory; set noeviction", policy)
	}
	return refused("maxmemory-policy is %s: once memory is full, Redis would drop streams and leases; set noeviction",
		policy)
}

// writable runs a script that writes and deletes a key. Replicas, full memory and ACLs refuse it.
func writable(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	const script = "redis.call('SET', KEYS[1], '1', 'PX', 1000) return redis.call('DEL', KEYS[1])"
	if err := client.Eval(ctx, script, []string{string(cfg.Namespace()) + "doctor"}).Err(); err != nil {
		return refused("scripts that write below prefix %s are refused: %w; check the user's permissions, "+
			"memory and disk", cfg.Prefix, err)
	}
	return passed("can write below prefix %s", cfg.Prefix)
}

// sameVolume checks that root is the volume to which workers under the prefix publish.
func sameVolume(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	id, err := client.Get(ctx, cfg.Namespace().Volume()).Result()
	volume, found := volume.ViewVolume(cfg.Root)
	if found == nil && volume.ID() != id {
		found = fmt.Errorf("%s is volume %s", cfg.Root, volume.ID())
	}
	switch {
	case errors.Is(err, redis.Nil):
		return passed("none yet: the first worker under prefix %s registers the one at %s", cfg.Prefix, cfg.Root)
	case err != nil:
		return refused("%w", err)
	case found != nil:
		return refused("%w, but workers under prefix %s publish to volume %s: mount that one there or choose "+
			"another --prefix", found, cfg.Prefix, id)
	}
	return passed("%s", id)
}
