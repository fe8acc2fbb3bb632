package watch

import (
	"context"
	"fmt"
)

// Count returns the number of watched repositories, in constant time.
func (r *Registry) Count(ctx context.Context) (int64, error) {
	n, err := r.redis.ZCard(ctx, r.index()).Result()
	if err != nil {
		return 0, fmt.Errorf("count watched repositories: %w", err)
	}
	return n, nil
}
