package redisx

import (
	"cmp"
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// DurabilityLevel says whether a crash of Redis' machine loses writes that Redis has confirmed.
type DurabilityLevel string

// Levels of durability.
const (
	Durable           DurabilityLevel = "durable" // confirmed writes are on disk
	WeaklyDurable     DurabilityLevel = "weak"
	UnknownDurability DurabilityLevel = "unknown" // Redis does not say
)

// Durability is what the settings of a Redis promise of confirmed writes.
type Durability struct {
	Level  DurabilityLevel `json:"level"`
	Reason string          `json:"reason,omitempty"` // the setting and what it loses; empty if durable
}

// ReadDurability reads the settings of the node that has key. Managed services often refuse CONFIG; INFO
// still tells whether there is an append-only file, but not when it is flushed.
func ReadDurability(ctx context.Context, client redis.UniversalClient, key string) Durability {
	node, err := NodeOf(ctx, client, key)
	if err != nil {
		return Durability{UnknownDurability, "persistence could not be determined, the node does not answer"}
	}
	settings := map[string]string{}
	for _, pattern := range []string{"append*", "no-appendfsync-on-rewrite"} { // Redis 6 takes one pattern
		values, err := node.ConfigGet(ctx, pattern).Result()
		if err != nil {
			break
		}
		for name, value := range values {
			settings[name] = value
		}
	}
	if settings["appendonly"] == "" {
		settings["appendonly"] = map[string]string{"0": "no", "1": "yes"}[InfoField(node.Info(ctx, "persistence").Val(),
			"aof_enabled")]
	}
	appendonly, fsync, pauses := settings["appendonly"], settings["appendfsync"], settings["no-appendfsync-on-rewrite"]
	switch {
	case appendonly == "":
		return Durability{UnknownDurability, "persistence could not be determined, CONFIG is refused"}
	case appendonly != "yes":
		return Durability{WeaklyDurable, "appendonly is off, a restart loses what is not in a snapshot"}
	case fsync == "":
		return Durability{UnknownDurability, "appendfsync could not be determined, CONFIG is refused"}
	case fsync == "everysec":
		return Durability{WeaklyDurable, "appendfsync everysec, a crash of its machine loses up to 2 s"}
	case fsync != "always":
		return Durability{WeaklyDurable, "appendfsync " + fsync + ", a crash of its machine loses up to 30 s or more"}
	case pauses != "no":
		return Durability{WeaklyDurable, "no-appendfsync-on-rewrite " + cmp.Or(pauses, "unknown") +
			", nothing is flushed in a rewrite"}
	}
	return Durability{Level: Durable}
}

// NodeOf returns a client of the master that has key, in a cluster: there, commands without a key go to any node.
func NodeOf(ctx context.Context, client redis.UniversalClient, key string) (redis.UniversalClient, error) {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return client, nil
}

// InfoField returns a field of the reply of INFO, or "".
func InfoField(info, field string) string {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), field+":"); found {
			return value
		}
	}
	return ""
}
