package app

import (
	"context"
	"net/http"
	"net/url"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/feed"
	"lockstep/internal/git/wire"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// placeReading makes a reader respond for the repositories of all cells, from the readers of the others, if the process belongs to a
// directory.
func placeReading(cfg Config, reading *server.Reading) error {
	if cfg.cells == nil {
		return nil
	}
	network, err := wire.NewNetwork(VolumeConfig(cfg.Config).Net)
	if err != nil {
		return invalid(err)
	}
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil
	reading.Cells, reading.CellTransport = cellReaders{cfg.cells, cfg.Cell}, cellTransport{direct, network.Transport()}
	return nil
}

// cellTransport sends requests for readers on this machine directly. A proxy would connect to a machine of its own, and read the tokens.
type cellTransport struct{ direct, network http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t cellTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if cells.IsLocal(r.URL.Hostname()) {
		return t.direct.RoundTrip(r)
	}
	return t.network.RoundTrip(r)
}

// resultSources returns the cells whose results a reader sends, its own first.
func resultSources(cfg Config, client redis.UniversalClient, own *access.Reader) func() []feed.Source {
	if cfg.cells == nil {
		only := []feed.Source{{Namespace: cfg.Namespace(), Audiences: own.Audiences}}
		return func() []feed.Source { return only }
	}
	all := allCells{set: cells.All(client, cfg.cells), redis: client}
	source := func(m cells.Member) feed.Source {
		reader := access.Reader{
			Watches: movedWatches{watch.NewRegistry(client, m.Namespace), all, m}, States: movedStates{state.NewStore(client, m.Namespace), all, m},
		}
		return feed.Source{Cell: m.Name, Namespace: m.Namespace, Audiences: reader.Audiences}
	}
	return func() []feed.Source {
		sources := []feed.Source{source(cells.Member{Name: cfg.Cell, Namespace: cfg.Namespace()})}
		for _, m := range all.set.Members() {
			if m.Name != cfg.Cell {
				sources = append(sources, source(m))
			}
		}
		return sources
	}
}

// movedWatches are the watches of a cell, and for a repository that has left it, those in its present cell.
type movedWatches struct {
	*watch.Registry
	all  allCells
	cell cells.Member
}

// Of implements [access.Watches].
func (w movedWatches) Of(ctx context.Context, repo events.RepoPath) (watch.Set, error) {
	if m, ok := w.all.left(w.cell, repo); ok {
		limited, cancel := context.WithTimeout(ctx, cells.AnswerTimeout)
		defer cancel()
		if set, err := watch.NewRegistry(w.all.redis, m.Namespace).Of(limited, repo); err == nil && len(set.Watches) > 0 {
			return set, nil
		}
	}
	return w.Registry.Of(ctx, repo) // kept until all apps have the results of this cell
}

// movedStates are the states of a cell, and for a repository that has left it, those in its present cell.
type movedStates struct {
	*state.Store
	all  allCells
	cell cells.Member
}

// DeniedOf implements [access.States].
func (s movedStates) DeniedOf(ctx context.Context, repo events.RepoPath, pairs [][2]string) ([]bool, error) {
	if m, ok := s.all.left(s.cell, repo); ok {
		limited, cancel := context.WithTimeout(ctx, cells.AnswerTimeout)
		defer cancel()
		if denied, err := state.NewStore(s.all.redis, m.Namespace).DeniedOf(limited, repo, pairs); err == nil {
			return denied, nil
		}
	}
	return s.Store.DeniedOf(ctx, repo, pairs)
}

// cellReaders finds the readers of cells in the directory.
type cellReaders struct {
	directory *cells.Directory
	own       string
}

// Own implements [server.CellReaders].
func (c cellReaders) Own() string { return c.own }

// Of implements [server.CellReaders].
func (c cellReaders) Of(repo events.RepoPath) (reader server.CellReader, ok bool) {
	cell := c.directory.Place(repo)
	if cell.Name == "" || cell.Name == c.own {
		return server.CellReader{}, false
	}
	return readerOf(cell), true
}

// From implements [server.CellReaders].
func (c cellReaders) From(name string) (reader server.CellReader, next string, ok bool) {
	for _, cell := range c.directory.Cells() { // in order
		switch {
		case cell.State == cells.Gone || cell.Name < name:
		case ok:
			return reader, cell.Name, true
		default:
			reader, ok = readerOf(cell), true
		}
	}
	return reader, "", ok
}

func readerOf(cell cells.Cell) server.CellReader {
	reader := server.CellReader{Cell: cell.Name}
	if u, err := url.Parse(cell.Reader); err == nil && cells.MayHaveTokens(u) {
		reader.URL = u
	}
	return reader
}
