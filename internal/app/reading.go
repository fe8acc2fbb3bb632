package app

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/feed"
	"lockstep/internal/server"
	"lockstep/internal/volume"
)

// openReading returns what serves published trees and results. It opens the volume at the first request that
// needs it. blocking is for blocking reads.
func openReading(
	ctx context.Context, cfg Config, client, blocking redis.UniversalClient, listener net.Listener,
) (*server.Reading, error) {
	if !server.Loopback(listener) && len(cfg.Proxies()) == 0 {
		cfg.Log.WarnContext(ctx, "tokens of apps will be refused: they need TLS; list the addresses of the TLS proxy "+
			"in trusted-proxies, or listen on 127.0.0.1")
	}
	namespace := cfg.Namespace()
	opener := &volumeViewer{cfg: cfg.Config, redis: client}
	placed := &placedRepos{set: cellsOf(cfg, client)}
	own := cells.Member{Name: cfg.Cell, Namespace: namespace}
	reader := placed.reader(own)
	reader.Volume, reader.Copies = opener.open, cfg.follow != nil
	reading := &server.Reading{Tokens: access.NewTokens(client, cfg.Shared()), Reader: reader}
	reading.Followers = feed.NewFollowers(client, cfg.Cell, namespace, cfg.Shared())
	if err := placeReading(cfg, reading, client); err != nil {
		return nil, err
	}
	results := feed.Config{
		Redis: client, Reader: stream.NewReader(blocking), Sources: placed.sources(own),
		Removed: reading.Tokens.Removed, Log: cfg.Log,
	}
	if cfg.cells != nil {
		results.Refresh = cfg.cells.Refresh
	}
	var err error
	if reading.Feed, err = feed.New(results); err != nil {
		return nil, err
	}
	reading.Observer = cfg.Metrics.Reading(reading.Feed.Open)
	return reading, nil
}

// volumeViewer opens the deployment's volume for reading, once it is there.
type volumeViewer struct {
	cfg   config.Config
	redis redis.UniversalClient

	mu     sync.Mutex
	volume *volume.Volume
	tried  time.Time // end of the last attempt, whose error is err
	err    error
}

var errNoVolume = errors.New("the root of this process is not the deployment's volume, or is not mounted; see root")

func (v *volumeViewer) open(ctx context.Context) (*volume.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.volume != nil || time.Since(v.tried) < time.Second { // the dashboard asks once for each repository of a list
		return v.volume, v.err
	}
	opened, err := ViewVolume(ctx, v.cfg, v.redis)
	if err == nil && opened == nil {
		err = &events.Error{Disposition: events.Retryable, Class: events.ClassVolume, Err: errNoVolume}
	}
	v.volume, v.err = opened, err
	if ctx.Err() == nil { // otherwise the error is that of this request
		v.tried = time.Now()
	}
	return opened, err
}
