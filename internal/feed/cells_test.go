package feed_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// manyCells is a feed of several cells in one Redis.
type manyCells struct {
	*world
	mu    sync.Mutex
	cells []string
	away  atomic.Value // stream that cannot be read

	refreshed []string // cells after the next refresh, if not nil
}

// DialHook implements [redis.Hook].
func (m *manyCells) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (m *manyCells) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook]: it fails commands about the stream that is away.
func (m *manyCells) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if stream := m.away.Load(); slices.Contains(cmd.Args(), stream) {
			cmd.SetErr(errAway)
			return errAway
		}
		return next(ctx, cmd)
	}
}

var errAway = errors.New("away")

// namespaceOf returns the namespace of a cell; eu-1 was a deployment without cells.
func namespaceOf(cell string) events.Namespace {
	if cell == "" || cell == "eu-1" {
		return events.DefaultNamespace
	}
	return events.Namespace("lockstep:{" + cell + "}:")
}

func newCells(t *testing.T, cells ...string) *manyCells {
	t.Helper()
	m := &manyCells{cells: cells}
	server := redistest.Start(t)
	client := server.Client()
	m.away.Store("none")
	hooked := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { hooked.Close() })
	hooked.AddHook(m)
	m.world = newWorld(t, server, func(cfg *feed.Config) {
		cfg.Redis = hooked
		cfg.Refresh = func(context.Context) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.refreshed != nil {
				m.cells = m.refreshed
			}
			return nil
		}
		cfg.Sources = func() (sources []feed.Source) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, cell := range m.cells {
				namespace := namespaceOf(cell)
				reader := access.Reader{Watches: watch.NewRegistry(client, namespace), States: state.NewStore(client, namespace)}
				sources = append(sources, feed.Source{Cell: cell, Namespace: namespace, Audiences: reader.Audiences})
			}
			return sources
		}
	})
	return m
}

func (m *manyCells) setCells(cells ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cells = cells
}

// addTo adds a result to the stream of a cell.
func (m *manyCells) addTo(cell string) (result string) {
	m.Helper()
	return "synced " + m.world.addTo(namespaceOf(cell), "", "acme/widgets")
}

// TestResultsOfCells sends the results of all cells, and resumes after the ones that a client has of each.
func TestResultsOfCells(t *testing.T) {
	t.Parallel()
	m := newCells(t, "eu-2", "eu-1")
	early := m.addTo("eu-1")
	operator := m.open("", feed.Start{})
	var want []string
	for i := range 20 {
		one := m.addTo([]string{"eu-1", "eu-2"}[i%2])
		operator.want(one)
		want = append(want, one)
	}
	all := m.open("", feed.Start{Oldest: true})
	var got []string
	for range 21 {
		got = append(got, all.result())
	}
	slices.Sort(got)
	if whole := append(slices.Clone(want), early); len(slices.Compact(got)) != 21 || slices.ContainsFunc(whole, func(s string) bool { return !slices.Contains(got, s) }) {
		t.Errorf("from the start: %v", got)
	}
	after := m.addTo("eu-2")
	m.open("", feed.Start{Cursor: operator.last}).want(after)
	testenv.Must(m.client.XTrimMaxLen(t.Context(), namespaceOf("eu-2").Results(), 0).Result())(t)
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: operator.last}); !isGone(err) {
		t.Errorf("a cursor before what one cell has kept: %v, want gone", err)
	}
}

func isGone(err error) bool {
	_, ok := errors.AsType[*feed.GoneError](err)
	return ok
}

// TestOtherCellsGoOn sends what the other cells have while one cannot be read.
func TestOtherCellsGoOn(t *testing.T) {
	t.Parallel()
	m := newCells(t, "eu-1", "eu-2")
	operator := m.open("", feed.Start{})
	m.away.Store(events.DefaultNamespace.Results())
	missed := m.addTo("eu-1")
	operator.want(m.addTo("eu-2"))
	again := m.open("", feed.Start{Cursor: operator.last})
	m.away.Store("none")
	operator.want(missed)
	again.want(missed)
	m.setCells("eu-2")
	operator.ends()
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: operator.last}); !isGone(err) {
		t.Errorf("a cursor with a position in a cell that is gone: %v", err)
	}
}

// TestCellsAreAddedAndRemoved has a deployment become a cell, and others come and go: streams end, and clients go on from their cursors.
func TestCellsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	m := newCells(t, "")
	first := m.addTo("")
	single := m.open("", feed.Start{Oldest: true})
	single.want(first)

	m.setCells("eu-1", "eu-2")
	single.ends()
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: single.last}); !isGone(err) {
		t.Errorf("the cursor of the former deployment: %v, want gone", err)
	}
	both := m.open("", feed.Start{})
	both.want(m.addTo("eu-1"))
	both.want(m.addTo("eu-2"))
	m.setCells("eu-1", "eu-2", "eu-3")
	both.ends()
	three := m.addTo("eu-3")
	all := m.open("", feed.Start{Cursor: both.last})
	all.want(three)
	m.setCells("eu-1", "eu-3")
	all.ends()
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: all.last}); !isGone(err) {
		t.Errorf("after the removal of a cell: %v, want gone", err)
	}
	m.setCells("eu-1")
	m.refreshed = []string{"eu-1", "eu-2", "eu-3"} // the copy of the directory is older than the cursor
	four := m.addTo("eu-3")
	m.open("", feed.Start{Cursor: all.last}).want(four)
	m.refreshed = nil
	m.setCells("eu-4", "eu-5")
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: all.last}); !isGone(err) {
		t.Errorf("a cursor of other cells: %v, want gone", err)
	}
}
