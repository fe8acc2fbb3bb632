package main

import (
	"context"

	"lockstep/events"
)

// clearPrefix deletes what a run has left in a Redis that others use too.
func clearPrefix(ctx context.Context, server *benchRedis, namespace events.Namespace) {
	if server.private != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, roundGrace)
	defer cancel()
	keys := server.client.Scan(ctx, 0, string(namespace)+"*", 1000).Iterator()
	for keys.Next(ctx) {
		_ = server.client.Unlink(ctx, keys.Val()).Err() // the next run has another prefix
	}
}
