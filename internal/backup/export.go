package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"time"

	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// atOnce is the number of repositories that are written at a time.
const atOnce = 100

// Counts has the numbers of items in a document.
type Counts struct {
	Cells   int `json:"cells,omitempty"`
	Repos   int `json:"repos"`
	Watches int `json:"watches"`
	Tokens  int `json:"tokens"`
}

type exporter struct {
	Deployment
	encoder *json.Encoder
	counts  Counts
	written map[string]bool // keys of repositories
}

// Export writes a document to out, and counts its items. version is that of the program. A watch that cannot be decoded, and a cell that
// does not answer, are errors, because repositories would be missing. After an error, the document is incomplete.
func Export(ctx context.Context, from Deployment, version string, out io.Writer) (Counts, error) {
	buffered := bufio.NewWriterSize(out, 64<<10)
	e := &exporter{Deployment: from, encoder: json.NewEncoder(buffered), written: map[string]bool{}}
	e.encoder.SetEscapeHTML(false)
	err := e.run(ctx, version)
	if err == nil {
		err = buffered.Flush()
	}
	return e.counts, err
}

func (e *exporter) run(ctx context.Context, version string) (err error) {
	header := Header{Format: Format, Version: version, Time: time.Now().UTC().Truncate(time.Second)}
	tokens := access.NewTokens(e.Redis, e.Tokens)
	if header.TokensRequired, err = tokens.Required(ctx); err != nil {
		return err
	}
	directory := e.Cells.Directory()
	if directory != nil {
		if err := directory.Refresh(ctx); err != nil {
			return err
		}
		header.Cells, header.Epoch = directory.Cells(), directory.Epoch()
		e.counts.Cells = len(header.Cells)
	}
	if err := e.encoder.Encode(header); err != nil {
		return err
	}
	if err := e.cells(ctx, false); err != nil {
		return err
	}
	if directory != nil { // what has moved meanwhile may be in a cell that had been read
		if err := directory.Refresh(ctx); err != nil {
			return err
		}
		if err := e.cells(ctx, true); err != nil {
			return err
		}
	}
	err = tokens.Each(ctx, func(one access.Hashed) error {
		e.counts.Tokens++
		return e.encoder.Encode(one)
	})
	if err != nil {
		return err
	}
	return e.encoder.Encode(End{End: true, Lines: 1 + e.counts.Repos + e.counts.Tokens})
}

// cells writes the repositories of all cells, or of a single deployment, but for those that are written already. It leaves out those
// between two cells unless moving is set.
func (e *exporter) cells(ctx context.Context, moving bool) error {
	for _, m := range e.Cells.Members() {
		if err := e.cell(ctx, m, moving); err != nil {
			return m.Explain(err)
		}
	}
	return nil
}

func (e *exporter) cell(ctx context.Context, m cells.Member, moving bool) error {
	missed, err := findMissed(ctx, e.Redis, m.Namespace)
	if err != nil {
		return err
	}
	var some []watch.Stored
	for one, err := range watch.NewRegistry(e.Redis, m.Namespace).All(ctx) {
		if err != nil {
			return err
		}
		if some = append(some, one); len(some) == atOnce {
			if err := e.write(ctx, m, missed, some, moving); err != nil {
				return err
			}
			some = nil
		}
	}
	return e.write(ctx, m, missed, some, moving)
}

// write writes repositories of a cell with their state.
func (e *exporter) write(ctx context.Context, m cells.Member, missed *missed, some []watch.Stored, moving bool) (err error) {
	states, directory := make([]state.Repo, len(some)), e.Cells.Directory()
	for i, one := range some {
		if states[i], err = state.NewStore(e.Redis, m.Namespace).Load(ctx, one.Repo); err != nil {
			return err
		}
	}
	if err := missed.read(ctx); err != nil { // after the states, so that it has the results of all of them
		return err
	}
	for i, one := range some {
		if e.written[one.Repo.Key()] || !states[i].IsHere() && !moving {
			continue
		}
		r := Repository{Repo: one.Repo, Watches: one.Watches, State: states[i].Exported()}
		if err := missed.repeat(ctx, one, r.State); err != nil {
			return err
		}
		if directory != nil {
			r.Cell, r.Pinned = m.Name, directory.PinnedTo(one.Repo, m.Name)
		}
		e.written[one.Repo.Key()] = true
		e.counts.Repos++
		e.counts.Watches += len(r.Watches)
		if err := e.encoder.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
