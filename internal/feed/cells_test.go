package feed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/access"
	"lockstep/internal/changes"
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

// silent reads a few heartbeats, which must not say that all results were sent.
func (r *reading) silent() {
	r.Helper()
	for range 4 {
		if e := r.next(); e.kind != "" {
			r.Fatalf("got %+v, want nothing", e)
		}
	}
	if e := r.next(); e.id != "" {
		r.Errorf("got the position %+v while a cell cannot be read", e)
	}
}

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
	m.added++
	r := events.Result{
		ID: fmt.Sprint("r", m.added), Type: events.ResultSynced, Source: "/test", Time: time.Now(), Repo: testenv.Must(events.ParseRepoPath("acme/widgets"))(m.T),
		Ref: testenv.Must(events.ParseRef("main"))(m.T), After: "a", Path: "acme/widgets",
	}
	fields := testenv.Must(stream.Fields(testenv.Must(changes.ResultMessage(r))(m.T)))(m.T)
	testenv.Must(m.client.XAdd(m.Context(), &redis.XAddArgs{Stream: namespaceOf(cell).Results(), Values: fields}).Result())(m.T)
	return "synced " + r.ID
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

// TestOtherCellsGoOn sends what the other cells have while one cannot be read, without saying that all was sent.
func TestOtherCellsGoOn(t *testing.T) {
	t.Parallel()
	m := newCells(t, "eu-1", "eu-2")
	operator := m.open("", feed.Start{})
	m.away.Store(events.DefaultNamespace.Results())
	missed := m.addTo("eu-1")
	operator.want(m.addTo("eu-2"))
	operator.silent()
	m.away.Store("none")
	operator.want(missed)
	m.setCells("eu-2")
	if got := operator.result(); got != "gone" {
		t.Errorf("a stream with a position in a cell that is gone: %s", got)
	}
}

// TestCellsAreAddedAndRemoved has a stream go on when a deployment becomes a cell, and others come and go.
func TestCellsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	m := newCells(t, "")
	first := m.addTo("")
	single := m.open("", feed.Start{Oldest: true})
	single.want(first)

	m.setCells("eu-1", "eu-2")
	one, two := m.addTo("eu-1"), m.addTo("eu-2")
	both := m.open("", feed.Start{Cursor: single.last})
	if got := []string{both.result(), both.result()}; !slices.Contains(got, one) || !slices.Contains(got, two) {
		t.Errorf("after the cursor of the former deployment: %v, want %s and %s", got, one, two)
	}
	m.setCells("eu-1", "eu-2", "eu-3")
	three := m.addTo("eu-3")
	both.want(three)
	m.setCells("eu-1", "eu-3")
	if got := both.result(); got != "gone" {
		t.Errorf("after the removal of a cell: %s, want gone", got)
	}
	m.setCells("eu-1")
	m.refreshed = []string{"eu-1", "eu-2", "eu-3"} // the copy of the directory is older than the cursor
	four := m.addTo("eu-3")
	m.open("", feed.Start{Cursor: both.last}).want(four)
	m.refreshed = nil
	m.setCells("eu-4", "eu-5")
	if _, err := m.feed.Locate(t.Context(), feed.Start{Cursor: both.last}); !isGone(err) {
		t.Errorf("a cursor of other cells: %v, want gone", err)
	}
}
