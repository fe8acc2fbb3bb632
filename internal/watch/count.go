package watch

import (
	"context"
	"fmt"
)

// Count is how many repositories are watched. It costs the same however many they are.
func (r *Registry) Count(ctx context.Context) (int64, error) {
	n, err := r.redis.ZCard(ctx, r.index()).Result()
	if err != nil {
		return 0, fmt.Errorf("count what is watched: %w", err)
	}
	return n, nil
}
