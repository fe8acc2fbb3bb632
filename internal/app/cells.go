package app

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/config"
)

// OpenCells returns the cells that a command works with: the one or all of the directory, as the setting cell
// says, or without it the deployment with the prefix of cfg. Without that setting it sends no command.
func OpenCells(ctx context.Context, cfg config.Config, client redis.UniversalClient) (*cells.Set, error) {
	if cfg.Directory() == "" {
		return cells.Single(client, cells.Member{Namespace: cfg.Namespace()}), nil
	}
	directory, err := cells.Open(ctx, client)
	if err != nil {
		return nil, err
	}
	if cfg.Cell == cells.Every {
		return cells.All(client, directory), nil
	}
	cell, err := cellOf(directory, cfg)
	if err != nil {
		return nil, err
	}
	return cells.Single(client, cell.Member()), nil
}

// cellOf returns the cell that cfg names.
func cellOf(directory *cells.Directory, cfg config.Config) (cells.Cell, error) {
	cell, ok := directory.Cell(cfg.Cell)
	if !ok {
		return cells.Cell{}, fmt.Errorf("cell %s: %w", cfg.Cell, cells.ErrNoCell)
	}
	if cell.State == cells.Gone {
		return cells.Cell{}, fmt.Errorf("cell %s is gone; add it again with lockstep cells add %s", cell.Name, cell.Name)
	}
	return cell, nil
}

// cellsOf returns all cells, or the only deployment.
func cellsOf(cfg Config, client redis.UniversalClient) *cells.Set {
	if cfg.cells == nil {
		return cells.Single(client, cells.Member{Namespace: cfg.Namespace()})
	}
	return cells.All(client, cfg.cells)
}

// joinCell opens the directory, waiting for Redis if need be, and returns the configuration of a process of the cell.
func joinCell(ctx context.Context, cfg Config) (Config, error) {
	if cfg.Config.Redis == "" {
		return cfg, invalid(fmt.Errorf("a cell requires %s: an embedded Redis has no directory", config.Names("redis")))
	}
	if cfg.Cell == cells.Every {
		return cfg, invalid(fmt.Errorf("a process belongs to one cell: name it with %s", config.Names("cell")))
	}
	client := cfg.Redis.Open()
	var cell cells.Cell
	err := awaitRedis(ctx, cfg.Redis, cfg.Log, func() (err error) {
		if cfg.cells, err = cells.Open(ctx, client); err == nil {
			cell, err = cellOf(cfg.cells, cfg.Config)
		}
		if err == nil && cfg.CellReader != "" {
			err = cfg.cells.Register(ctx, cell.Name, cfg.CellReader)
		}
		return err
	})
	if err != nil {
		_ = client.Close()
		return cfg, err
	}
	cfg.Config = cfg.Config.In(cell.Member())
	cfg.closeCells = client.Close
	cfg.Log.InfoContext(ctx, "joined cell", "cell", cell.Name, "prefix", cfg.Prefix)
	return cfg, nil
}

// renaming wraps the handler of a cell's changes, so that a repository that is renamed there stays there:
// before the move is settled, its new path is pinned to the cell. If that fails, the change is tried again.
func renaming(cfg Config, handle handlers.Handler) handlers.Handler {
	return func(ctx context.Context, job handlers.Job) (handlers.Outcome, error) {
		outcome, err := handle(ctx, job)
		if err != nil || outcome.Result.Type != events.ResultMoved || outcome.Result.To.IsZero() {
			return outcome, err
		}
		if err := cfg.cells.Override(ctx, outcome.Result.To, "", cfg.Cell, true); err != nil {
			return handlers.Outcome{}, events.Errorf(events.Retryable, events.ClassInternal, "%w", err)
		}
		return outcome, nil
	}
}
