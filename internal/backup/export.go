package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// reposAtOnce is the number of repositories whose state is read at a time.
const reposAtOnce = 50

// exporter writes a document.
type exporter struct {
	client    redis.UniversalClient
	directory *cells.Directory // nil without one
	cells     map[string]*cellExporter
	left      []events.RepoPath // have left a cell for one that had been read, perhaps before they came
	again     bool              // repositories are written that may have been written before
	encoder   *json.Encoder
	counts    Counts
}

// Export writes a document to out, and counts its items. A document without its last line is incomplete. version is that of the program. A
// watch that cannot be decoded, and a cell that does not answer, are errors, because repositories would be missing.
func Export(ctx context.Context, from Deployment, version string, out io.Writer) (Counts, error) {
	buffered := bufio.NewWriterSize(out, 64<<10)
	e := &exporter{client: from.Redis, directory: from.Cells.Directory(), cells: map[string]*cellExporter{}, encoder: json.NewEncoder(buffered)}
	e.encoder.SetEscapeHTML(false)
	err := e.run(ctx, from, version)
	if err == nil {
		err = buffered.Flush()
	}
	return e.counts, err
}

func (e *exporter) run(ctx context.Context, from Deployment, version string) error {
	if e.directory != nil {
		if err := e.directory.Refresh(ctx); err != nil {
			return err
		}
	}
	members := from.Cells.Members()
	header, err := e.header(ctx, members, from.Tokens, version)
	if err != nil {
		return err
	}
	var before *cells.Directory
	if e.directory != nil {
		before = e.directory.Copy()
	}
	if err := e.encoder.Encode(header); err != nil {
		return err
	}
	for _, m := range members {
		one := &cellExporter{exporter: e, cell: openCell(e.client, m)}
		e.cells[m.Name] = one
		if err := one.run(ctx); err != nil {
			return m.Explain(err)
		}
	}
	if err := e.moved(ctx, before); err != nil {
		return err
	}
	e.counts.Cells = len(header.Cells)
	err = access.NewTokens(e.client, from.Tokens).Each(ctx, func(one access.Hashed) error {
		e.counts.Tokens++
		return e.encoder.Encode(one)
	})
	if err != nil {
		return err
	}
	return e.encoder.Encode(End{End: true, Counts: e.counts})
}

func (e *exporter) header(ctx context.Context, members []cells.Member, tokens events.Namespace, version string) (Header, error) {
	header := Header{Format: 1, Version: version, Time: time.Now().UTC().Truncate(time.Second)}
	for _, m := range members {
		volume, err := e.client.Get(ctx, m.Namespace.Volume()).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return header, m.Explain(fmt.Errorf("read the volume's ID: %w", err))
		}
		if e.directory == nil {
			header.Volume = volume
			continue
		}
		one, _ := e.directory.Cell(m.Name)
		one.Volume = volume
		header.Cells = append(header.Cells, one)
	}
	var err error
	if header.TokensRequired, err = access.NewTokens(e.client, tokens).Required(ctx); err != nil {
		return header, err
	}
	if e.directory != nil {
		header.Format, header.Epoch = Format, e.directory.Epoch()
	}
	return header, nil
}

// moved writes the repositories that have moved since before from their present cells: they may have come to a cell after it was read.
func (e *exporter) moved(ctx context.Context, before *cells.Directory) error {
	if before == nil {
		return nil
	}
	e.again = true
	left := e.left
	for {
		if err := e.directory.Refresh(ctx); err != nil {
			return err
		}
		keys, err := e.directory.MovedSince(before)
		if err != nil {
			return fmt.Errorf("repositories were moved during the export; export again: %w", err)
		}
		for _, repo := range left {
			keys = append(keys, repo.Key())
		}
		if left = nil; len(keys) == 0 {
			return nil
		}
		before = e.directory.Copy()
		for _, key := range keys {
			repo, err := events.ParseRepoPath(key)
			if err != nil {
				return err
			}
			one := e.cells[before.Place(repo).Name]
			if one == nil {
				return fmt.Errorf("cells were added during the export; export again: %w", cells.ErrChanged)
			}
			stored, err := one.registry.Stored(ctx, repo)
			if err == nil {
				err = one.write(ctx, []watch.Stored{stored})
			}
			if err != nil {
				return one.Explain(err)
			}
		}
	}
}

// cellExporter writes the repositories of one cell, or of a single deployment.
type cellExporter struct {
	*exporter
	*cell
	undelivered *undelivered
}

func (e *cellExporter) run(ctx context.Context) (err error) {
	if e.undelivered, err = findUndelivered(ctx, e.client, e.Namespace); err != nil {
		return err
	}
	if err := e.watched(ctx); err != nil {
		return err
	}
	return e.unwatched(ctx)
}

// watched writes the repositories with watches.
func (e *cellExporter) watched(ctx context.Context) error {
	var some []watch.Stored
	for one, err := range e.registry.All(ctx) {
		if err != nil {
			return err
		}
		if some = append(some, one); len(some) == reposAtOnce {
			if err := e.write(ctx, some); err != nil {
				return err
			}
			some = nil
		}
	}
	return e.write(ctx, some)
}

// unwatched writes the repositories that only have state. One that is no longer watched since watched was called is among them.
func (e *cellExporter) unwatched(ctx context.Context) error {
	for repos, err := range e.reposWithState(ctx) {
		if err != nil {
			return err
		}
		watched, err := e.registry.AreWatched(ctx, repos)
		if err != nil {
			return err
		}
		var some []watch.Stored
		for i, repo := range repos {
			if !watched[i] {
				some = append(some, watch.Stored{Repo: repo})
			}
		}
		for part := range slices.Chunk(some, reposAtOnce) {
			if err := e.write(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes repositories with their state.
func (e *cellExporter) write(ctx context.Context, some []watch.Stored) error {
	repos := make([]events.RepoPath, len(some))
	for i, one := range some {
		repos[i] = one.Repo
	}
	states, views, err := e.states.Read(ctx, repos)
	if err != nil {
		return err
	}
	if err := e.undelivered.read(ctx); err != nil { // after the states, so that it has the results of all of them
		return err
	}
	for i, one := range some {
		if elsewhere, err := e.isElsewhere(ctx, one.Repo, states[i]); err != nil {
			return err
		} else if elsewhere {
			continue
		}
		record := Repository{Repo: one.Repo, Watches: one.Documents, State: states[i].Exported()}
		if record.State != nil {
			record.Views = views[i]
			if err := e.undelivered.apply(ctx, one, record.State, record.Views); err != nil {
				return err
			}
		}
		if len(record.Watches) == 0 && len(record.State) == 0 {
			continue
		}
		if record.Again = e.again; e.directory != nil {
			record.Cell, record.Pinned = e.Name, e.directory.PinnedTo(one.Repo, e.Name)
		}
		e.counts.Repos++
		e.counts.Watches += len(record.Watches)
		if err := e.encoder.Encode(record); err != nil {
			return err
		}
	}
	return nil
}

// isElsewhere reports whether another cell exports a repository: it has moved there and left its watches behind, has not come here yet, or
// was left here by mistake.
func (e *cellExporter) isElsewhere(ctx context.Context, repo events.RepoPath, here state.Repo) (bool, error) {
	if _, arriving := here.Arriving(); arriving {
		return true, nil
	}
	move, _, moved := here.MovedToCell()
	if e.directory == nil {
		return moved, nil
	}
	at := e.directory.Place(repo).Name
	if moved {
		at = move.Cell
	}
	other, ok := e.directory.Cell(at)
	if !ok || other.State == cells.Gone || at == e.Name {
		return false, nil
	}
	has, _, err := openCell(e.client, cells.Member{Name: other.Name, Namespace: other.Prefix}).look(ctx, repo)
	if has && moved && e.cells[other.Name] != nil {
		e.left = append(e.left, repo)
	}
	return has, err
}
