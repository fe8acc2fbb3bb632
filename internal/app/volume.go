package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/redisx"
	"lockstep/internal/volume"
)

// VolumeConfig returns the volume settings of cfg.
func VolumeConfig(cfg config.Config) volume.Config {
	limits := cfg.Limits
	return volume.Config{
		Grace: max(cfg.TreeGrace, 1), KeepNamed: max(12*cfg.TreeGrace, time.Minute),
		Links:        checkout.LinkPolicy(cfg.OutsideLinks),
		MaxTreeFiles: limits.MaxTreeFiles, MaxTreeBytes: int64(limits.MaxTreeBytes), MaxFileBytes: int64(limits.MaxFileBytes),
		MaxPackBytes: int64(limits.MaxPackBytes), MaxInflatedBytes: int64(limits.MaxInflatedBytes),
		FetchTimeout: limits.FetchTimeout,
		MaxRepoBytes: int64(limits.MaxRepoBytes), MaxVolumeBytes: int64(limits.MaxVolumeBytes),
		MinFreeBytes: int64(limits.MinFreeBytes),
		Net: wire.Config{
			Hosts: cfg.Hosts, Timeouts: cfg.HostTimeouts, Rewrites: cfg.Rewrites, Proxy: cfg.Proxy,
			CAFile: cfg.CAFile, KnownHosts: cfg.KnownHosts,
		},
	}
}

// ResultWatermarks returns a function that reads how far consumers have settled the results stream.
func ResultWatermarks(
	client redis.UniversalClient, namespace events.Namespace,
) func(context.Context) (volume.Horizon, error) {
	return func(ctx context.Context) (volume.Horizon, error) {
		latest, unsettled, err := stream.ReadWatermarks(ctx, client, namespace.Results())
		return volume.Horizon{Latest: latest, Unsettled: unsettled}, err
	}
}

// ClaimVolume registers the volume as the deployment's. It returns an error if another volume is registered, or if workers
// of another deployment use this one.
func ClaimVolume(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume,
) error {
	if err := awaitUnused(ctx, client, namespace, volume); err != nil {
		return err
	}
	return registerVolume(ctx, client, namespace, volume)
}

func registerVolume(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume,
) error {
	if err := client.SetNX(ctx, namespace.Volume(), volume.ID(), 0).Err(); err != nil {
		return err
	}
	id, err := client.Get(ctx, namespace.Volume()).Result()
	if err != nil {
		return err
	}
	if rest, newer := strings.CutPrefix(id, "format "); newer {
		format, _, _ := strings.Cut(rest, " ")
		return fmt.Errorf("the keys below the prefix %s in Redis have format %s, but this version supports format 1 "+
			"only: run a newer version", namespace, format)
	}
	if id != volume.ID() {
		return fmt.Errorf("root %s is volume %s, but workers under prefix %s publish to volume %s: mount that one, "+
			"choose another --prefix or, if that volume is lost permanently, stop all workers and delete the key %s",
			volume.Root(), volume.ID(), namespace, id, namespace.Volume())
	}
	return nil
}

// registerInterval is the time between two checks of a worker whether Redis still knows its volume.
const registerInterval = 2 * time.Second

// awaitUnused returns an error if workers of another deployment use the volume: ones that do not register it here.
func awaitUnused(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume,
) error {
	for began := time.Now(); ; {
		known, err := client.Exists(ctx, namespace.Volume()).Result()
		if err != nil || known > 0 {
			return err
		}
		if used, err := volume.IsUsed(); err != nil || !used {
			return err
		}
		if time.Since(began) > 3*registerInterval {
			return fmt.Errorf("root %s is volume %s, which workers of another deployment use, with another Redis or "+
				"--prefix: choose another --root, or stop them", volume.Root(), volume.ID())
		}
		if !redisx.Pause(ctx, registerInterval/4) {
			return context.Cause(ctx)
		}
	}
}

// keepRegistered registers the volume again whenever Redis has lost that, until ctx is done.
func keepRegistered(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume, log *slog.Logger,
) {
	for differs := false; redisx.Pause(ctx, registerInterval); {
		if set, err := client.SetNX(ctx, namespace.Volume(), volume.ID(), 0).Result(); err != nil || set {
			continue
		}
		id, err := client.Get(ctx, namespace.Volume()).Result()
		if err == nil && id != volume.ID() && !differs {
			log.ErrorContext(ctx, "workers under this prefix publish to another volume, stop this one or those",
				"root", volume.Root(), "volume", volume.ID(), "other", id)
			differs = true
		}
	}
}

// ViewVolume opens the deployment's volume for reading. It returns nil if cfg.Root is not that volume or is
// not mounted, because commands that only read Redis may run anywhere.
func ViewVolume(ctx context.Context, cfg config.Config, client redis.UniversalClient) (*volume.Volume, error) {
	vol, err := volume.ViewVolume(cfg.Root)
	if errors.Is(err, volume.ErrNoVolume) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	id, err := client.Get(ctx, cfg.Namespace().Volume()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	if err == nil && id != vol.ID() { // if Redis lost its data it knows no volume: accept any
		return nil, nil
	}
	return vol, nil
}
