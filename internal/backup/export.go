package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Deployment is what is exported, or imported into.
type Deployment struct {
	Redis  redis.UniversalClient
	Cells  *cells.Set       // those of a directory, or a single deployment
	Tokens events.Namespace // prefix of the tokens: that of the directory if there is one
}

// exporter writes a document.
type exporter struct {
	client  redis.UniversalClient
	encoder *json.Encoder
	counts  Counts
}

// Export writes a document to out, and counts its items. A document without its last line is incomplete. version is that of the program. A
// watch that cannot be decoded, and a cell that does not answer, are errors, because repositories would be missing.
func Export(ctx context.Context, from Deployment, version string, out io.Writer) (Counts, error) {
	buffered := bufio.NewWriterSize(out, 64<<10)
	e := &exporter{client: from.Redis, encoder: json.NewEncoder(buffered)}
	e.encoder.SetEscapeHTML(false)
	err := e.run(ctx, from, version)
	if err == nil {
		err = buffered.Flush()
	}
	return e.counts, err
}

func (e *exporter) run(ctx context.Context, from Deployment, version string) error {
	header := Header{Format: 1, Version: version, Time: time.Now().UTC().Truncate(time.Second)}
	members := from.Cells.Members()
	volumes := make([]string, len(members))
	for i, m := range members {
		var err error
		if volumes[i], err = e.client.Get(ctx, m.Namespace.Volume()).Result(); err != nil && !errors.Is(err, redis.Nil) {
			return inCell(m, fmt.Errorf("read the volume's ID: %w", err))
		}
	}
	directory := from.Cells.Directory()
	if directory == nil {
		header.Volume = volumes[0]
	} else {
		header.Format = Format
		for i, m := range members {
			cell, _ := directory.Cell(m.Name)
			cell.Volume = volumes[i]
			header.Cells = append(header.Cells, cell)
		}
	}
	if err := e.encoder.Encode(header); err != nil {
		return err
	}
	for _, m := range members {
		one := cellExporter{
			exporter: e, member: m, directory: directory, states: state.NewStore(e.client, m.Namespace), registry: watch.NewRegistry(e.client, m.Namespace),
		}
		if err := one.run(ctx); err != nil {
			return inCell(m, err)
		}
	}
	e.counts.Cells = len(header.Cells)
	err := access.NewTokens(e.client, from.Tokens).Each(ctx, func(one access.Hashed) error {
		e.counts.Tokens++
		return e.encoder.Encode(one)
	})
	if err != nil {
		return err
	}
	return e.encoder.Encode(End{End: true, Counts: e.counts})
}

// inCell adds the name of the cell, if it has one, to an error.
func inCell(cell cells.Member, err error) error {
	if err == nil || cell.Name == "" {
		return err
	}
	return fmt.Errorf("cell %s: %w", cell.Name, err)
}

// cellExporter writes the repositories of one cell, or of a single deployment.
type cellExporter struct {
	*exporter
	member      cells.Member
	directory   *cells.Directory // nil without one
	states      *state.Store
	registry    *watch.Registry
	undelivered *undelivered
}

func (e *cellExporter) run(ctx context.Context) (err error) {
	if e.undelivered, err = findUndelivered(ctx, e.client, e.member.Namespace); err != nil {
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
	for cursor := uint64(0); ; {
		page, err := e.states.List(ctx, "", cursor, 1000)
		if err != nil {
			return err
		}
		var repos []events.RepoPath
		for _, summary := range page.Repos {
			if repo, err := events.ParseRepoPath(summary.Repo); err == nil {
				repos = append(repos, repo)
			}
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
		for len(some) > 0 {
			n := min(reposAtOnce, len(some))
			if err := e.write(ctx, some[:n]); err != nil {
				return err
			}
			some = some[n:]
		}
		if cursor = page.Next; cursor == 0 {
			return nil
		}
	}
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
		if e.directory != nil {
			record.Cell, record.Pinned = e.member.Name, e.directory.PinnedTo(one.Repo, e.member.Name)
		}
		e.counts.Repos++
		e.counts.Watches += len(record.Watches)
		if err := e.encoder.Encode(record); err != nil {
			return err
		}
	}
	return nil
}

// isElsewhere reports whether another cell exports a repository: it has moved there and left its watches behind, or has not come here yet.
func (e *cellExporter) isElsewhere(ctx context.Context, repo events.RepoPath, here state.Repo) (bool, error) {
	if _, arriving := here.Arriving(); arriving {
		return true, nil
	}
	move, _, moved := here.MovedToCell()
	if !moved || e.directory == nil {
		return moved, nil
	}
	other, ok := e.directory.Cell(move.Cell)
	if !ok {
		return false, nil
	}
	_, arriving, err := state.NewStore(e.client, other.Prefix).Arriving(ctx, repo)
	return !arriving, err
}
