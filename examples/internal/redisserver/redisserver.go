// Package redisserver connects the examples to a Redis, or to an embedded one.
package redisserver

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// Server is a Redis that answers.
type Server struct {
	Address string // host:port
	Close   func() // stops it if it is embedded
}

// Connect returns the Redis at an address or, without one, an embedded Redis that keeps nothing.
func Connect(ctx context.Context, address string) (Server, error) {
	redis.SetLogger(&logging.VoidLogger{}) // it would log errors that it also returns
	if address == "" {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // else keys never expire
		if err := m.Start(); err != nil {
			return Server{}, fmt.Errorf("start an embedded Redis: %w", err)
		}
		return Server{m.Addr(), m.Close}, nil
	}
	s := Server{address, func() {}}
	client := s.Open()
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return Server{}, fmt.Errorf("the Redis at %s does not answer; start it, or name another with -redis: %w", address, err)
	}
	return s, nil
}

// Open returns a client that sends each command once: a repetition could execute a write twice whose reply was lost.
func (s Server) Open() redis.UniversalClient {
	return redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
}
