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

// deployment is what a command works with.
type deployment struct {
	cfg   config.Config // of the cell that the command is about, if it is about one
	redis redis.UniversalClient
	cells *cells.Set
}

// onCells is connected, for a command that works with all cells: a single deployment, unless the setting cell
// names one or all.
func onCells(
	cmd *cobra.Command, std term.Streams, timeout time.Duration, fn func(context.Context, deployment) error,
) error {
	return connected(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		set, err := app.OpenCells(ctx, cfg, client)
		if err != nil {
			return err
		}
		return fn(ctx, deployment{cfg, client, set})
	})
}

// onShared is [onCells] for a command about what all cells share. It works with all of them even if the
// settings name one.
func onShared(
	cmd *cobra.Command, std term.Streams, timeout time.Duration, fn func(context.Context, deployment) error,
) error {
	return connected(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
		if cfg.Cell != "" {
			cfg.Cell = cells.Every
		}
		set, err := app.OpenCells(ctx, cfg, client)
		if err != nil {
			return err
		}
		return fn(ctx, deployment{cfg, client, set})
	})
}

var errOneCell = errors.New("this command works in one cell: name it with --cell; see lockstep cells ls")

// onRepo is [onCells] for a command about one repository.
func onRepo(
	cmd *cobra.Command, std term.Streams, timeout time.Duration, repo events.RepoPath,
	fn func(context.Context, deployment) error,
) error {
	return onCells(cmd, std, timeout, func(ctx context.Context, d deployment) error {
		cell, err := d.cells.Of(repo)
		if err != nil {
			return err
		}
		d.cfg = d.cfg.In(cell)
		return cell.Explain(fn(ctx, d))
	})
}

// showList prints a list of what the cells that answer have, unless there is an error, and returns an error that names
// the other cells.
func showList[T any](
	std term.Streams, out *term.Output, rows []T, list term.List[T], missing []cells.Missing, err error,
) error {
	if err != nil {
		return err
	}
	if err := term.ShowList(std, out, rows, list); err != nil {
		return err
	}
	return lacking(missing)
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
