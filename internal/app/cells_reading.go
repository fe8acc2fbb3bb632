package app

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/cells"
	"lockstep/internal/egress"
	"lockstep/internal/feed"
	"lockstep/internal/git/wire"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// placeReading makes a reader respond for the repositories of all cells, from the readers of the others, if
// the process belongs to a directory.
func placeReading(cfg Config, reading *server.Reading, client redis.UniversalClient) error {
	if cfg.cells == nil {
		return nil
	}
	network, err := wire.NewNetwork(VolumeConfig(cfg.Config).Net)
	if err != nil {
		return invalid(err)
	}
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil
	reading.Cells, reading.CellTransport = cellReaders{cfg.cells, client, cfg.Cell, &answering{}},
		cellTransport{direct, network.Transport()}
	return nil
}

// cellTransport sends requests for readers on this machine directly. A proxy would connect to a machine of
// its own, and read the tokens.
type cellTransport struct{ direct, network http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t cellTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if egress.IsLocal(r.URL.Hostname()) {
		return t.direct.RoundTrip(r)
	}
	return t.network.RoundTrip(r)
}

// answering remembers which cells do not answer, so that not each repository waits for them. The zero value
// is ready to use.
type answering struct {
	mu   sync.Mutex
	down map[string]time.Time // until when a cell is not asked
}

// downFor is how long a cell that did not answer is not asked.
const downFor = 5 * time.Second

// ask calls fn unless a cell has not answered lately. It returns false if the cell does not answer in time.
func (a *answering) ask(ctx context.Context, cell string, fn func(context.Context) error) bool {
	a.mu.Lock()
	until := a.down[cell]
	a.mu.Unlock()
	if time.Now().Before(until) {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, cells.AnswerTimeout)
	defer cancel()
	err := fn(limited)
	if err != nil && ctx.Err() == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.down == nil {
			a.down = map[string]time.Time{}
		}
		a.down[cell] = time.Now().Add(downFor)
	}
	return err == nil
}

// placedRepos finds out who may read what a repository has left behind in a cell: those who may in the cell where it is
// placed now. A move places it there when its watches and its state are there.
type placedRepos struct {
	set       *cells.Set
	answering answering
}

// reader returns a reader of the cell m, which serves repositories while they move to another one, too.
func (p *placedRepos) reader(m cells.Member) *access.Reader {
	return &access.Reader{
		Watches: placedWatches{watch.NewRegistry(p.set.Redis(), m.Namespace), p, m},
		States:  placedStates{state.NewStore(p.set.Redis(), m.Namespace), p, m},
	}
}

// sources returns the cells whose results a reader sends, its own first.
func (p *placedRepos) sources(own cells.Member) func() []feed.Source {
	source := func(m cells.Member) feed.Source {
		return feed.Source{Cell: m.Name, Namespace: m.Namespace, Audiences: p.reader(m).Audiences}
	}
	return func() []feed.Source {
		sources := []feed.Source{source(own)}
		for _, m := range p.set.Members() {
			if m.Name != own.Name {
				sources = append(sources, source(m))
			}
		}
		return sources
	}
}

// ask calls fn for the cell where a repository is placed. It returns false if that is from, or does not answer.
func (p *placedRepos) ask(
	ctx context.Context, from cells.Member, repo events.RepoPath, fn func(context.Context, cells.Member) error,
) bool {
	at, err := p.set.Of(repo)
	if err != nil || at.Name == from.Name {
		return false
	}
	return p.answering.ask(ctx, at.Name, func(ctx context.Context) error { return fn(ctx, at) })
}

// placedWatches are the watches of a cell, and for a repository that is placed in another one, those there.
// If that does not answer, they are the former ones, which are kept until all apps have the results of the former cell.
type placedWatches struct {
	*watch.Registry
	placed *placedRepos
	cell   cells.Member
}

// present returns what read finds among the watches in another cell where a repository is placed; ok is false if it is
// placed in w's, or if that one has no answer.
func present[T any](
	ctx context.Context, w placedWatches, repo events.RepoPath, read func(context.Context, *watch.Registry) (T, error),
) (found T, ok bool, err error) {
	ok = w.placed.ask(ctx, w.cell, repo, func(ctx context.Context, at cells.Member) error {
		found, err = read(ctx, watch.NewRegistry(w.placed.set.Redis(), at.Namespace))
		if _, invalid := errors.AsType[*events.Error](err); invalid {
			return nil // an answer
		}
		return err
	})
	return found, ok, err
}

// Of implements [access.Watches].
func (w placedWatches) Of(ctx context.Context, repo events.RepoPath) (watch.Set, error) {
	set, ok, err := present(ctx, w, repo, func(ctx context.Context, in *watch.Registry) (watch.Set, error) {
		return in.Of(ctx, repo)
	})
	if ok {
		return set, err
	}
	return w.Registry.Of(ctx, repo)
}

// ofApp returns the watches of an app in another cell where a repository is placed.
func (w placedWatches) ofApp(
	ctx context.Context, app string, repo events.RepoPath,
) (watches []watch.Watch, ok bool, err error) {
	return present(ctx, w, repo, func(ctx context.Context, in *watch.Registry) ([]watch.Watch, error) {
		return in.OfApp(ctx, app, repo)
	})
}

// OfApp implements [access.Watches].
func (w placedWatches) OfApp(ctx context.Context, app string, repo events.RepoPath) ([]watch.Watch, error) {
	if watches, ok, err := w.ofApp(ctx, app, repo); ok {
		return watches, err
	}
	return w.Registry.OfApp(ctx, app, repo)
}

// ReposOf implements [access.Watches]. A repository whose watches are in another cell, and are none, is left out.
func (w placedWatches) ReposOf(ctx context.Context, q watch.Query) (page watch.AppPage, err error) {
	if page, err = w.Registry.ReposOf(ctx, q); err != nil {
		return page, err
	}
	kept := page.Repos[:0]
	for _, one := range page.Repos {
		watches, ok, err := w.ofApp(ctx, q.App, one.Repo)
		if ok && err != nil {
			return page, err
		}
		if ok {
			one.Watches = watches
		}
		if len(one.Watches) > 0 {
			kept = append(kept, one)
		}
	}
	page.Repos = kept
	return page, nil
}

// placedStates are the states of a cell, and for a repository that is placed in another one, those there, if that
// answers.
type placedStates struct {
	*state.Store
	placed *placedRepos
	cell   cells.Member
}

// LoadReadable implements [access.States]: what is published here, and who is refused there.
func (s placedStates) LoadReadable(ctx context.Context, repo events.RepoPath) (state.Repo, error) {
	known, err := s.Store.LoadReadable(ctx, repo)
	if err != nil {
		return known, err
	}
	s.placed.ask(ctx, s.cell, repo, func(ctx context.Context, at cells.Member) error {
		present, err := state.NewStore(s.placed.set.Redis(), at.Namespace).LoadTroubles(ctx, repo)
		if err == nil {
			known = known.RefusedAs(present)
		}
		return err
	})
	return known, nil
}

// DeniedOf implements [access.States].
func (s placedStates) DeniedOf(
	ctx context.Context, repo events.RepoPath, pairs [][2]string,
) (denied []bool, err error) {
	if s.placed.ask(ctx, s.cell, repo, func(ctx context.Context, at cells.Member) error {
		denied, err = state.NewStore(s.placed.set.Redis(), at.Namespace).DeniedOf(ctx, repo, pairs)
		return err
	}) {
		return denied, nil
	}
	return s.Store.DeniedOf(ctx, repo, pairs)
}

// cellReaders finds the readers of cells in the directory.
type cellReaders struct {
	directory *cells.Directory
	redis     redis.UniversalClient
	own       string
	answering *answering
}

// Own implements [server.CellReaders].
func (c cellReaders) Own() string { return c.own }

// IsHere implements [server.CellReaders].
func (c cellReaders) IsHere(repo events.RepoPath) bool { return c.directory.Place(repo).Name == c.own }

// Of implements [server.CellReaders]. From the change of the directory until a repository is published in its new
// cell, the old one serves it, unless that is lost.
func (c cellReaders) Of(ctx context.Context, repo events.RepoPath) (reader server.CellReader, ok bool) {
	cell := c.directory.Place(repo)
	if cell.Name == "" {
		return server.CellReader{}, false
	}
	c.answering.ask(ctx, cell.Name, func(ctx context.Context) error {
		move, elsewhere, err := state.NewStore(c.redis, cell.Prefix).ServedBy(ctx, repo)
		if old, known := c.directory.Cell(move.Cell); elsewhere && known && old.State != cells.Gone {
			cell = old
		}
		return err
	})
	if cell.Name == c.own {
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
