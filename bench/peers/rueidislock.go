package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidisLock is rueidislock as its README shows it for a single Redis of 7.0.5 or later: one key,
// NOLOOP tracking, and otherwise its defaults (5 s, extended every 2.5 s).
type rueidisLock struct {
	locker rueidislock.Locker
	key    string
}

func openRueidislock(ctx context.Context, redisURL, key string) (lock, error) {
	opt, err := rueidis.ParseURL(redisURL)
	if err != nil {
		return nil, errors.New("--redis does not parse; want redis://host:port")
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: opt, KeyMajority: 1, NoLoopTracking: true})
	if err != nil {
		return nil, err
	}
	if err := locker.Client().Do(ctx, locker.Client().B().Ping().Build()).Error(); err != nil {
		return nil, fmt.Errorf("reach Redis: %w", err)
	}
	return rueidisLock{locker, key}, nil
}

func (l rueidisLock) acquire(ctx context.Context) (func() error, error) {
	_, cancel, err := l.locker.WithContext(ctx, l.key)
	if err != nil {
		return nil, err
	}
	return func() error { cancel(); return nil }, nil // cancel returns when Redis has answered
}

// gaveUp returns false: rueidislock never gives up.
func (rueidisLock) gaveUp(error) bool { return false }
