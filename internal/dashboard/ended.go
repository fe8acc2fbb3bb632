package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// endedTimeout bounds a lookup, which every request with a session needs.
const endedTimeout = 2 * time.Second

// endedSessions are the sessions that were logged out, for all replicas. Redis keeps each until it would have
// expired. While Redis is unavailable, a copy of a session's cookie is accepted.
type endedSessions struct {
	redis  redis.UniversalClient // nil: no session ends early
	prefix string                // of all keys
}

func (e endedSessions) add(ctx context.Context, s session) error {
	ctx, cancel := context.WithTimeout(ctx, endedTimeout)
	defer cancel()
	if err := e.redis.Set(ctx, e.key(s.id), "", max(time.Second, time.Until(s.expires))).Err(); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	return nil
}

func (e endedSessions) has(ctx context.Context, s session) bool {
	if e.redis == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, endedTimeout)
	defer cancel()
	n, err := e.redis.Exists(ctx, e.key(s.id)).Result()
	return err == nil && n > 0
}

// key contains a hash, as the signed value of a session begins with its ID.
func (e endedSessions) key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return e.prefix + "dashboard:ended:" + hex.EncodeToString(sum[:16])
}
