package doctor

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/volume"
)

// Requirements on Redis.
const (
	oldestRedis  = "6.2" // XAUTOCLAIM, XADD NOMKSTREAM, trimming by id
	fullRedis    = "7.0" // reports the lag of a group
	maxClockSkew = 2 * time.Second
	slowRedis    = 20 * time.Millisecond
)

// examineRedis checks the configured Redis.
func examineRedis(ctx context.Context, cfg config.Config) []Check {
	if cfg.Redis == "" {
		return []Check{warned("redis", "not configured: a single worker would use an embedded Redis and lose its data at the end; set --redis")}
	}
	server, err := cfg.RedisServer()
	if err != nil {
		return []Check{refused("redis", "%w", err)}
	}
	client := server.Open()
	defer client.Close()
	key := string(cfg.Namespace())
	node, err := redisx.NodeOf(ctx, client, key) // commands without a key examine it
	if err != nil {
		return []Check{refused("redis", "%w", redisx.Explain(server, err))}
	}
	sent := time.Now()
	at, err := node.Time(ctx).Result()
	if err != nil {
		return []Check{refused("redis", "%w", redisx.Explain(server, err))}
	}
	took := time.Since(sent)
	checks := []Check{
		redisSpeed(ctx, node, server, took),
		RedisClock(at, sent, took),
	}
	info, err := node.Info(ctx, "server", "replication", "persistence", "memory").Result()
	if err != nil {
		checks = append(checks, warned("redis version", "unknown, because INFO is refused: permit it, or make sure that it is %s or later", oldestRedis))
	} else {
		checks = append(checks, RedisVersion(redisx.InfoField(info, "redis_version")), redisRole(info))
	}
	checks = append(checks, persistence(ctx, client, key, info), eviction(ctx, node, info), writable(ctx, client, cfg))
	if needsVolume(cfg) {
		checks = append(checks, sameVolume(ctx, client, cfg))
	}
	checks = append(checks, workers(ctx, client, cfg))
	return checks
}

// redisSpeed checks the fastest of several response times, so that it does not report a single slow one.
func redisSpeed(ctx context.Context, client redis.UniversalClient, server redisx.Server, took time.Duration) Check {
	const name = "redis"
	for range 4 {
		began := time.Now()
		if err := client.Ping(ctx).Err(); err != nil {
			return refused(name, "%w", redisx.Explain(server, err))
		}
		took = min(took, time.Since(began))
	}
	if took > slowRedis {
		return warned(name, "%s answers in %v: every change needs about ten round trips; move it closer to the workers", server, took.Round(time.Millisecond))
	}
	return passed(name, "%s answers in %v", server, took.Round(10*time.Microsecond))
}

// sameVolume checks that root is the volume to which workers under the prefix publish.
func sameVolume(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	const name = "volume of this prefix"
	id, err := client.Get(ctx, cfg.Namespace().Volume()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return refused(name, "%w", err)
	}
	volume, viewErr := volume.ViewVolume(cfg.Root)
	switch {
	case err != nil:
		return passed(name, "none yet: the first worker under prefix %s registers the one at %s", cfg.Prefix, cfg.Root)
	case viewErr != nil:
		return refused(name, "%w, but workers under prefix %s publish to volume %s: mount that one there or choose another --prefix", viewErr, cfg.Prefix, id)
	case volume.ID() != id:
		return refused(name, "%s is volume %s, but workers under prefix %s publish to volume %s: mount that one there or choose another --prefix", cfg.Root, volume.ID(), cfg.Prefix, id)
	}
	return passed(name, "%s", id)
}

// workers counts the workers that take changes. None is fine: they may not have been started yet.
func workers(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	const name = "workers of this prefix"
	changes, err := stream.Stats(ctx, client, cfg.Prefix, cfg.Namespace().Changes())
	if err != nil {
		return refused(name, "%w", err)
	}
	group, _ := changes.Group(events.WorkersGroup)
	if group.Live == 0 {
		return passed(name, "none takes changes at the moment")
	}
	return passed(name, "%d take changes", group.Live)
}

// RedisClock compares Redis' clock with the local time at the middle of the call. at is the time that Redis returned.
func RedisClock(at, sent time.Time, took time.Duration) Check {
	const name = "redis clock"
	apart := at.Sub(sent.Add(took / 2))
	if apart.Abs() > took/2+maxClockSkew {
		return warned(name, "differs by %v from this machine's, which affects logs and retention but not leases; run NTP on both", apart.Round(time.Millisecond))
	}
	return passed(name, "within %v of this machine's", (took/2 + maxClockSkew).Round(time.Millisecond))
}

// RedisVersion checks a version as INFO reports it.
func RedisVersion(v string) Check {
	const name = "redis version"
	switch {
	case v == "":
		return warned(name, "unknown; make sure that it is compatible with Redis %s or later", oldestRedis)
	case olderThan(v, oldestRedis):
		return refused(name, "%s is too old; upgrade to %s or later", v, oldestRedis)
	case olderThan(v, fullRedis):
		return warned(name, "%s does not report the lag of groups; upgrade to %s or later for that", v, fullRedis)
	}
	return passed(name, "%s", v)
}

// olderThan compares major and minor versions.
func olderThan(v, than string) bool {
	numbers := func(v string) (major, minor int) {
		parts := strings.SplitN(v+".0", ".", 3)
		major, _ = strconv.Atoi(parts[0])
		minor, _ = strconv.Atoi(parts[1])
		return major, minor
	}
	major, minor := numbers(v)
	wantMajor, wantMinor := numbers(than)
	return major < wantMajor || major == wantMajor && minor < wantMinor
}

func redisRole(info string) Check {
	const name = "redis role"
	switch role := redisx.InfoField(info, "role"); role {
	case "master", "":
		return passed(name, "%s", term.Dash(role))
	default:
		return refused(name, "%s; use the master, or the Sentinels with redis+sentinel://", role)
	}
}

// redisSetting reads one of Redis' settings; ok is false if CONFIG is refused.
func redisSetting(ctx context.Context, client redis.UniversalClient, name string) (value string, ok bool) {
	values, err := client.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", false
	}
	value, ok = values[name]
	return value, ok
}

func persistence(ctx context.Context, client redis.UniversalClient, key, info string) Check {
	const name = "redis persistence"
	for _, field := range []string{"aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"} {
		if redisx.InfoField(info, field) == "err" {
			return refused(name, "%s is err: Redis could not write to its disk; check that disk and Redis' log", field)
		}
	}
	durability := redisx.ReadDurability(ctx, client, key)
	switch durability.Level {
	case redisx.Durable:
		return passed(name, "appendonly, appendfsync always: a crash of its machine loses nothing that was confirmed")
	case redisx.WeaklyDurable:
		return warned(name, "%s; set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no to lose nothing that was confirmed", durability.Reason)
	default:
		return warned(name, "%s; make sure that appendonly is yes and appendfsync is always", durability.Reason)
	}
}

func eviction(ctx context.Context, client redis.UniversalClient, info string) Check {
	const name = "redis memory"
	policy, known := redisSetting(ctx, client, "maxmemory-policy")
	if !known {
		return warned(name, "could not be determined, because CONFIG is refused; make sure that maxmemory-policy is noeviction")
	}
	limit, _ := redisSetting(ctx, client, "maxmemory")
	used, _ := strconv.ParseInt(redisx.InfoField(info, "used_memory"), 10, 64)
	most, _ := strconv.ParseInt(limit, 10, 64)
	switch {
	case policy == "noeviction" && most > 0 && used > most/5*4:
		return warned(name, "%s of maxmemory's %s used: once full, Redis refuses writes; raise maxmemory or lower stream-max-length",
			volume.BytesText(used), volume.BytesText(most))
	case policy == "noeviction":
		return passed(name, "maxmemory-policy is noeviction")
	case limit == "0":
		return warned(name, "maxmemory-policy is %s, harmless only without maxmemory; set noeviction", policy)
	}
	return refused(name, "maxmemory-policy is %s: once memory is full, Redis would drop streams and leases; set noeviction", policy)
}

// writable runs a script that writes and deletes a key. Replicas, full memory and ACLs refuse it.
func writable(ctx context.Context, client redis.UniversalClient, cfg config.Config) Check {
	const name = "redis scripts"
	key := string(cfg.Namespace()) + "doctor"
	err := client.Eval(ctx, "redis.call('SET', KEYS[1], '1', 'PX', 1000) return redis.call('DEL', KEYS[1])", []string{key}).Err()
	if err != nil {
		return refused(name, "scripts that write below prefix %s are refused: %w; check the user's permissions, memory and disk", cfg.Prefix, err)
	}
	return passed(name, "can write below prefix %s", cfg.Prefix)
}
