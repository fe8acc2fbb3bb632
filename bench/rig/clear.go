package rig

import (
	"context"

	"lockstep/events"
)

// ClearPrefix deletes what a run has left in a Redis that others use too.
func ClearPrefix(ctx context.Context, server *Redis, namespace events.Namespace) {
	if server.Private != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, RoundGrace)
	defer cancel()
	keys := server.Client.Scan(ctx, 0, string(namespace)+"*", 1000).Iterator()
	for keys.Next(ctx) {
		_ = server.Client.Unlink(ctx, keys.Val()).Err() // the next run has another prefix
	}
}
