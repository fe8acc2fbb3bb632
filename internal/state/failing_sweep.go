package state

import (
	"context"
	_ "embed" // the script
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
)

var (
	//go:embed failing.lua
	failingSource string
	failingScript = redis.NewScript(failingSource)
)

// SweepFailures forgets the failures of repositories that last failed longer than age ago: nothing tries their changes again. It returns
// the number of repositories.
func (s *Store) SweepFailures(ctx context.Context, age time.Duration) (swept int, err error) {
	now, err := stream.Time(ctx, s.redis, s.namespace.Failing())
	if err != nil {
		return 0, fmt.Errorf("sweep failures: %w", err)
	}
	args := []any{string(s.namespace) + "repo:", failingField, now.Add(-age).UnixMilli()}
	for {
		n, err := failingScript.Run(ctx, s.redis, []string{s.namespace.Failing()}, args...).Int()
		if err != nil {
			return swept, fmt.Errorf("sweep failures: %w", err)
		}
		if swept += n; n == 0 {
			return swept, nil
		}
	}
}
