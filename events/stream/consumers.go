package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Consumers returns the consumers of a group, including those that crashed recently, the most recently active
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
