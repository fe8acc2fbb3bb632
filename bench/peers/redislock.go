package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

const (
	redislockTTL     = 10 * time.Second      // there is no default; this is Lockstep's
	redislockBackoff = 10 * time.Millisecond // there is no default; more makes it slower, not fairer
)

// redislockLock is redislock with a linear backoff, the retry strategy that its examples show.
type redislockLock struct {
	client *redislock.Client
	key    string
}

func openRedislock(ctx context.Context, redisURL, key string) (lock, error) {
	client, err := openGoRedis(ctx, redisURL)
	if err != nil {
		return nil, err
	}
	return redislockLock{redislock.New(client), key}, nil
}

func (l redislockLock) acquire(ctx context.Context) (func() error, error) {
	got, err := l.client.Obtain(ctx, l.key, redislockTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockBackoff)})
	if err != nil {
		return nil, err
	}
	return func() error { return got.Release(context.Background()) }, nil
}

// gaveUp reports that Obtain has retried for the TTL.
func (redislockLock) gaveUp(err error) bool {
	return errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded)
}

// openGoRedis makes a client with go-redis' defaults.
func openGoRedis(ctx context.Context, redisURL string) (*redis.Client, error) {
	opt, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, errors.New("--redis does not parse; want redis://host:port")
	}
	client := redis.NewClient(opt)
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("reach Redis: %w", err)
	}
	return client, nil
}
