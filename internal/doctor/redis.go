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

const (
	maxClockSkew = 2 * time.Second
	slowRedis    = 20 * time.Millisecond
)

// examineRedis checks the configured Redis.
func examineRedis(ctx context.Context, cfg config.Config) (checks Checks) {
	if cfg.Redis == "" {
		checks.add("redis", warned("not configured: a single worker would use an embedded Redis and lose its data at the end; set --redis"))
		return checks
	}
	server, err := cfg.RedisServer()
	if err != nil {
		checks.add("redis", refused("%w", err))
		return checks
	}
	client := server.Open()
	defer client.Close()
	key := string(cfg.Namespace())
	node, err := redisx.NodeOf(ctx, client, key) // commands without a key examine it
	var at, sent time.Time
	took := time.Hour
	for range 5 { // the fastest answer counts, so that a single slow one is not reported
		if err != nil {
			break
		}
		began := time.Now()
		var now time.Time
		if now, err = node.Time(ctx).Result(); time.Since(began) < took {
			at, sent, took = now, began, time.Since(began)
		}
	}
	if err != nil {
		checks.add("redis", refused("%w", redisx.Explain(server, err)))
		return checks
	}
	if took > slowRedis {
		checks.add("redis", warned("%s answers in %v: every change needs about ten round trips; move it closer to the workers", server, took.Round(time.Millisecond)))
	} else {
		checks.add("redis", passed("%s answers in %v", server, took.Round(10*time.Microsecond)))
	}
	checks.add("redis clock", RedisClock(at, sent, took))
	info, err := node.Info(ctx, "server", "replication", "persistence", "memory").Result()
	if err != nil {
		checks.add("redis version", warned("unknown, because INFO is refused: permit it, or make sure that it is 6.2 or later"))
	} else {
		checks.add("redis version", RedisVersion(redisx.InfoField(info, "redis_version")))
		checks.add("redis role", redisRole(redisx.InfoField(info, "role")))
	}
	checks.add("redis persistence", persistence(ctx, client, key, info))
	checks.add("redis memory", eviction(ctx, node, info))
	checks.add("redis scripts", writable(ctx, client, cfg))
	if needsVolume(cfg) {
		checks.add("volume of this prefix", sameVolume(ctx, client, cfg))
	}
	return checks
}

// RedisClock compares Redis' clock with the local time at the middle of the call. at is the time that Redis returned.
func RedisClock(at, sent time.Time, took time.Duration) Check {
	apart := at.Sub(sent.Add(took / 2))
	if apart.Abs() > took/2+maxClockSkew {
		return warned("differs by %v from this machine's, which affects logs and retention but not leases; run NTP on both", apart.Round(time.Millisecond))
	}
	return passed("within %v of this machine's", (took/2 + maxClockSkew).Round(time.Millisecond))
}

// RedisVersion checks a version as INFO reports it. Redis 6.2 has XAUTOCLAIM and trims by id, 7.0 reports the lag of a group.
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

func redisRole(role string) Check {
	if role == "master" || role == "" {
		return passed("%s", cmp.Or(role, "-"))
	}
	return refused("%s; use the master, or the Sentinels with redis+sentinel://", role)
}

func persistence(ctx context.Context, client redis.UniversalClient, key, info string) Check {
	for _, field := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if redisx.InfoField(info, field) == "err" {
			return refused("%s is err: Redis could not write to its disk; check that disk and Redis' log", field)
		}
	}
	durability := redisx.ReadDurability(ctx, client, key)
	switch durability.Level {
	case redisx.Durable:
		return passed("appendonly, appendfsync always: a crash of its machine loses nothing that was confirmed")
	case redisx.WeaklyDurable:
		return warned("%s; set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no to lose nothing that was confirmed", durability.Reason)
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
	return refused("maxmemory-policy is %s: once memory is full, Redis would drop streams and leases; set noeviction", policy)
}

// writable runs a script that writes and deletes a key. Replicas, full memory and ACLs refuse it.
func writable(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	key := string(cfg.Namespace()) + "doctor"
	err := client.Eval(ctx, "redis.call('SET', KEYS[1], '1', 'PX', 1000) return redis.call('DEL', KEYS[1])", []string{key}).Err()
	if err != nil {
		return refused("scripts that write below prefix %s are refused: %w; check the user's permissions, memory and disk", cfg.Prefix, err)
	}
	return passed("can write below prefix %s", cfg.Prefix)
}

// sameVolume checks that root is the volume to which workers under the prefix publish.
func sameVolume(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	id, err := client.Get(ctx, cfg.Namespace().Volume()).Result()
	volume, viewErr := volume.ViewVolume(cfg.Root)
	switch {
	case errors.Is(err, redis.Nil):
		return passed("none yet: the first worker under prefix %s registers the one at %s", cfg.Prefix, cfg.Root)
	case err != nil:
		return refused("%w", err)
	case viewErr != nil:
		return refused("%w, but workers under prefix %s publish to volume %s: mount that one there or choose another --prefix", viewErr, cfg.Prefix, id)
	case volume.ID() != id:
		return refused("%s is volume %s, but workers under prefix %s publish to volume %s: mount that one there or choose another --prefix", cfg.Root, volume.ID(), cfg.Prefix, id)
	}
	return passed("%s", id)
}
