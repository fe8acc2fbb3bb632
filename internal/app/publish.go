package app

import (
	"context"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/changes"
)

// PublishChange is [changes.Publish] without the entry.
func PublishChange(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change,
) error {
	_, err := changes.Publish(ctx, client, namespace, change)
	return err
}
