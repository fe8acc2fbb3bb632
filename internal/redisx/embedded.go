package redisx

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Embedded is an in-process Redis server for demos and tests. Other local processes can connect to it, too.
type Embedded struct {
	Server
	redis *miniredis.Miniredis
}

// StartEmbedded starts an embedded server on a free port of the loopback interface.
func StartEmbedded() (*Embedded, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // otherwise keys never expire
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start the embedded Redis: %w", err)
	}
	server, err := Parse("redis://"+m.Addr(), "")
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Embedded{Server: server, redis: m}, nil
}

// Close stops the server.
func (e *Embedded) Close() { e.redis.Close() }
