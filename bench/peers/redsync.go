package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncLock is redsync as its README shows it: all defaults, which are an expiry of 8 s and 32
// tries, 50 to 250 ms apart.
type redsyncLock struct {
	rs  *redsync.Redsync
	key string
}

func openRedsync(ctx context.Context, redisURL, key string) (lock, error) {
	client, err := openGoRedis(ctx, redisURL)
	if err != nil {
		return nil, err
	}
	return newRedsync(client, key), nil
}

func newRedsync(client *redis.Client, key string) redsyncLock {
	return redsyncLock{redsync.New(goredis.NewPool(client)), key}
}

func (l redsyncLock) acquire(ctx context.Context) (func() error, error) {
	mutex := l.rs.NewMutex(l.key)
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		ok, err := mutex.UnlockContext(context.Background())
		if err == nil && !ok {
			err = errors.New("redsync: not unlocked")
		}
		return err
	}, nil
}

// gaveUp reports whether all tries failed: the last error is then of the kind "already taken".
func (redsyncLock) gaveUp(err error) bool {
	_, taken := errors.AsType[*redsync.ErrTaken](err)
	return taken || errors.Is(err, redsync.ErrFailed)
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
