package redisx

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Embedded is an in-process Redis server for demos, tests and followers. Other local processes can connect to it, too.
type Embedded struct {
	Server
	redis *miniredis.Miniredis
	stop  func()
}

// StartEmbedded starts an embedded server on a free port of the loopback interface.
func StartEmbedded() (*Embedded, error) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start the embedded Redis: %w", err)
	}
	server, err := Parse("redis://"+m.Addr(), nil)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Embedded{Server: server, redis: m, stop: Expire(m)}, nil
}

// Close stops the server.
func (e *Embedded) Close() {
	e.stop()
	e.redis.Close()
}

// Expire makes the keys of m expire until stop is called, each within 100 ms of its time, or a second beside
// some 100,000 keys: at most a fiftieth of the time is spent on it, and time goes more slowly for keys if
// that does not suffice. Without it they never expire; [miniredis.Miniredis.ClockTTL] sorts all keys at each
// access.
func Expire(m *miniredis.Miniredis) (stop func()) {
	const pause, longest, share = 100 * time.Millisecond, time.Second, 50
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for last := time.Now(); ; {
			select {
			case <-timer.C:
			case <-done:
				return
			}
			now := time.Now()
			m.FastForward(min(now.Sub(last), longest)) // which ages keys that were set a moment ago as well
			last = now
			timer.Reset(max(pause, share*time.Since(now)))
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}
