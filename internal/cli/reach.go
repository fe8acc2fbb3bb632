package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
)

// connected runs fn with a client of the configured Redis. It returns an error with advice if none is
// configured or if Redis does not answer within the timeout.
func connected(
	cmd *cobra.Command, std term.Streams, timeout time.Duration,
	fn func(context.Context, config.Config, redis.UniversalClient) error,
) error {
	cfg, err := settings(cmd, std)
	if err != nil {
		return err
	}
	if cfg.Redis == "" {
		return term.UsageError(fmt.Errorf("%s is required; use the same URL as the service", config.Names("redis")))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	return withRedis(cfg, func(client redis.UniversalClient) error { return fn(ctx, cfg, client) })
}

// withRedis runs fn with a client of the configured Redis, and adds advice to its error.
func withRedis(cfg config.Config, fn func(redis.UniversalClient) error) error {
	server, err := cfg.RedisServer()
	if err != nil {
		return term.UsageError(err)
	}
	client := server.Open()
	defer client.Close()
	return redisx.Explain(server, fn(client))
}

// onCells is connected, for a command that works with all cells: a single deployment, unless the setting cell
// names one or all.
func onCells(cmd *cobra.Command, std term.Streams, timeout time.Duration,
	fn func(context.Context, config.Config, redis.UniversalClient, *cells.Set) error) error {
	return connected(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		set, err := app.OpenCells(ctx, cfg, client)
		if err != nil {
			return err
		}
		return fn(ctx, cfg, client, set)
	})
}

// onSet is [onCells] for a command that only shows what internal/operate has of them.
func onSet(
	cmd *cobra.Command, std term.Streams, timeout time.Duration, fn func(context.Context, *cells.Set) error,
) error {
	return onCells(cmd, std, timeout, func(
		ctx context.Context, _ config.Config, _ redis.UniversalClient, set *cells.Set,
	) error {
		return fn(ctx, set)
	})
}

// onShared is [onCells] for a command about what all cells share. It works with all of them even if the
// settings name one.
func onShared(cmd *cobra.Command, std term.Streams, timeout time.Duration,
	fn func(context.Context, config.Config, redis.UniversalClient, *cells.Set) error) error {
	return connected(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		if cfg.Cell != "" {
			cfg.Cell = cells.Every
		}
		set, err := app.OpenCells(ctx, cfg, client)
		if err != nil {
			return err
		}
		return fn(ctx, cfg, client, set)
	})
}

// onRedis is [onCells] for a command that works in one cell. fn is given the settings of that one.
func onRedis(
	cmd *cobra.Command, std term.Streams, timeout time.Duration,
	fn func(context.Context, config.Config, redis.UniversalClient) error,
) error {
	return onCells(cmd, std, timeout, func(
		ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
	) error {
		if !set.IsSingle() {
			return term.UsageError(errOneCell)
		}
		return fn(ctx, cfg.In(set.Members()[0]), client)
	})
}

var errOneCell = errors.New("this command works in one cell: name it with --cell; see lockstep cells ls")

// onRepo is [onCells] for a command about one repository. fn is given the settings of its cell.
func onRepo(
	cmd *cobra.Command, std term.Streams, timeout time.Duration, repo events.RepoPath,
	fn func(context.Context, config.Config, redis.UniversalClient) error,
) error {
	return onCells(cmd, std, timeout, func(
		ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
	) error {
		cell, err := set.Of(repo)
		if err != nil {
			return err
		}
		return cell.Explain(fn(ctx, cfg.In(cell), client))
	})
}

// lacking returns an error that names the cells that are missing in a list that has been printed, or nil.
func lacking(missing []cells.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the list is incomplete: %w", operate.Unanswered(missing))
}

// oneCell returns the settings of the cell that a command works in, for one that opens Redis itself.
func oneCell(ctx context.Context, cfg config.Config) (config.Config, error) {
	if cfg.Directory() == "" {
		return cfg, nil
	}
	err := withRedis(cfg, func(client redis.UniversalClient) error {
		set, err := app.OpenCells(ctx, cfg, client)
		if err != nil {
			return err
		}
		if !set.IsSingle() {
			return term.UsageError(errOneCell)
		}
		cfg = cfg.In(set.Members()[0])
		return nil
	})
	return cfg, err
}
