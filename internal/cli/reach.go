package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/config"
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
		return fn(ctx, app.InCell(cfg, set.Members()[0]), client)
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
		return cell.Explain(fn(ctx, app.InCell(cfg, cell), client))
	})
}

// eachCell calls fn for each cell that answers, in the order of their names, and returns the others. An error
// of fn means that its cell does not answer any more, unless there is only one.
func eachCell(
	ctx context.Context, cfg config.Config, set *cells.Set, fn func(config.Config, cells.Member) error,
) ([]cells.Missing, error) {
	answering, missing := set.Answering(ctx)
	for _, cell := range answering {
		err := fn(app.InCell(cfg, cell), cell)
		switch {
		case err == nil:
		case set.IsSingle() || !redisx.Unavailable(err):
			return missing, cell.Explain(err)
		default:
			missing = append(missing, cells.Missing{Cell: cell.Name, Error: term.OneLine(err)})
		}
	}
	return missing, nil
}

// gather returns the rows that read finds in each cell that answers, and the other cells. The rows of several
// cells are sorted by compare. It returns up to limit rows, all if it is 0, and reports whether there are
// more.
func gather[T any](
	ctx context.Context, cfg config.Config, set *cells.Set, limit int, compare func(a, b T) int,
	read func(cfg config.Config, cell string) (rows []T, more bool, err error),
) (list []T, more bool, missing []cells.Missing, err error) {
	list = []T{}
	missing, err = eachCell(ctx, cfg, set, func(cfg config.Config, cell cells.Member) error {
		rows, rest, err := read(cfg, cellName(set, cell))
		list, more = append(list, rows...), more || rest
		return err
	})
	if !set.IsSingle() {
		slices.SortStableFunc(list, compare)
	}
	if limit > 0 && len(list) > limit {
		list, more = list[:limit], true
	}
	return list, more, missing, err
}

// cellName returns the name of a cell for the output: "" if there is only one.
func cellName(set *cells.Set, cell cells.Member) string {
	if set.IsSingle() {
		return ""
	}
	return cell.Name
}

// lacking returns an error that names the cells that are missing in a list that has been printed, or nil.
func lacking(missing []cells.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the list is incomplete: %w", unanswered(missing))
}

// unanswered returns an error that names cells that do not answer.
func unanswered(missing []cells.Missing) error {
	texts := make([]string, len(missing))
	for i, m := range missing {
		texts[i] = m.Cell + " (" + m.Error + ")"
	}
	return errors.New("no answer from cell " + strings.Join(texts, ", "))
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
		cfg = app.InCell(cfg, set.Members()[0])
		return nil
	})
	return cfg, err
}
