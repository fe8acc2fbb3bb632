package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Consumer is a member of a consumer group.
type Consumer struct {
	Name    string
	Pending int64         // entries read and not settled
	Heard   time.Duration // since its last heartbeat or read; before Redis 7.2 only a [Subscriber] updates it while idle
}

// Live reports whether the consumer sent a heartbeat or read within [LiveFor].
func (c Consumer) Live() bool { return c.Heard < LiveFor }

// Consumers returns the consumers of a group, including those that crashed recently, the most
// recently active first. A group that does not exist has none.
func Consumers(ctx context.Context, client redis.UniversalClient, topic, group string) ([]Consumer, error) {
	infos, err := client.XInfoConsumers(ctx, topic, group).Result()
	if err != nil && !noGroup(err) && !noStream(err) {
		return nil, fmt.Errorf("consumers of %s: %w", group, err)
	}
	var all []Consumer
	for _, info := range infos {
		if info.Name != parked {
			all = append(all, Consumer{info.Name, info.Pending, info.Idle})
		}
	}
	slices.SortFunc(all, func(a, b Consumer) int { return cmp.Or(cmp.Compare(a.Heard, b.Heard), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}
