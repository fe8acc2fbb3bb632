package stream

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// LiveFor is how long a consumer counts as live after its last heartbeat or read.
const LiveFor = 15 * time.Second

// maxHeartbeat is the longest interval of a consumer's heartbeats. They are part of its reads, so
// that a consumer is not live while its reader hangs or it drains.
const maxHeartbeat = 2 * time.Second

// heartbeatIn returns the time until the consumer's heartbeat is due. It must also precede the removal of
// dead consumers.
func (s *subscription) heartbeatIn() time.Duration {
	return max(0, min(maxHeartbeat, s.cfg.MaxIdleTime/4)-time.Since(s.heard))
}

// touch sends a heartbeat if one is due. It replaces that of a read while there is no room for entries.
func (s *subscription) touch(ctx context.Context) {
	if s.heartbeatIn() > 0 {
		return
	}
	// otherwise a Redis that is away would be called in a loop
	s.heard = time.Now()
	if err := withTimeout(ctx, s.group.touch); err != nil && !noGroup(err) { // read re-creates the group
		s.outage.failed(ctx, err)
	}
}

func (g *group) touch(ctx context.Context) error {
	err := touchScript.Run(ctx, g.redis, []string{g.stream}, g.name, g.consumer).Err()
	if errors.Is(err, redis.Nil) { // the script returns no value
		return nil
	}
	return err
}
