package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
)

// strategy is a way to rebuild an index that is being read.
type strategy struct {
	name   string
	locked bool // one rebuild at a time
	// rebuild writes all documents. The returned settlement is applied in the step that settles the request, if the lease
	// is still held.
	rebuild func(ctx context.Context, ix index, version string) (stream.Settlement, error)
	// open returns the hash to read.
	open func(ctx context.Context, ix index) (string, error)
}

var strategies = []strategy{
	{name: "in place", rebuild: inPlace, open: openLive},
	{name: "in place under a lock", locked: true, rebuild: inPlace, open: openLive},
	{name: "blue-green", locked: true, rebuild: blueGreen, open: openNamed},
	{name: "soft delete", locked: true, rebuild: softDelete, open: openLive},
}

// inPlace deletes all documents and writes new ones.
func inPlace(ctx context.Context, ix index, version string) (stream.Settlement, error) {
	if err := ix.client.Del(ctx, ix.live()).Err(); err != nil {
		return stream.Settlement{}, err
	}
	return stream.Settlement{}, ix.write(ctx, ix.live(), version)
}

// softDelete moves each document to the bin when it is replaced, and empties the bin at the end. No document is ever
// missing, and until the end all could be restored.
func softDelete(ctx context.Context, ix index, version string) (stream.Settlement, error) {
	err := ix.pages(func(ids []string) error {
		old, err := ix.client.HMGet(ctx, ix.live(), ids...).Result()
		if err != nil {
			return err
		}
		_, err = ix.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
			for i, id := range ids {
				if old[i] != nil {
					tx.HSet(ctx, ix.bin(), id, old[i])
				}
			}
			tx.HSet(ctx, ix.live(), contents(ids, version))
			return nil
		})
		return err
	})
	if err != nil {
		return stream.Settlement{}, err
	}
	return stream.Settlement{}, ix.client.Del(ctx, ix.bin()).Err()
}

const grace = time.Minute // how long a replaced generation is kept: longer than any read

// blueGreen builds a new generation next to the current one and publishes it in the step that settles the request. A rebuild
// that is interrupted and retried continues with its generation.
func blueGreen(ctx context.Context, ix index, version string) (stream.Settlement, error) {
	named, err := ix.client.HGetAll(ctx, ix.pointer()).Result()
	if err != nil {
		return stream.Settlement{}, err
	}
	if previous := named["previous"]; previous != "" {
		if err := ix.client.Expire(ctx, ix.generation(previous), grace).Err(); err != nil {
			return stream.Settlement{}, err
		}
	}
	if err := ix.write(ctx, ix.generation(version), version); err != nil {
		return stream.Settlement{}, err
	}
	return stream.Settlement{State: []stream.HashUpdate{{
		Key: ix.pointer(), Fields: map[string]string{"generation": version, "previous": named["generation"]},
	}}}, nil
}

func openLive(_ context.Context, ix index) (string, error) { return ix.live(), nil }

// openNamed resolves the pointer once, so that a read stays in one generation.
func openNamed(ctx context.Context, ix index) (string, error) {
	generation, err := ix.client.HGet(ctx, ix.pointer(), "generation").Result()
	if errors.Is(err, redis.Nil) {
		return ix.generation("none"), nil // nothing was built yet
	}
	return ix.generation(generation), err
}
