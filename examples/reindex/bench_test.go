package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
)

func strategyNamed(t *testing.T, name string) strategy {
	t.Helper()
	for _, s := range strategies {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("no strategy %q", name)
	panic("unreachable")
}

// afterEach is called after each command and pipeline of a client.
type afterEach func()

func (f afterEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f afterEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer f()
		return next(ctx, cmd)
	}
}

func (f afterEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer f()
		return next(ctx, cmds)
	}
}

// world is an index with one complete version.
type world struct {
	t      *testing.T
	server *redistest.Server
	ix     index
}

func newWorld(t *testing.T, s strategy) *world {
	w := &world{t: t, server: redistest.Start(t)}
	w.ix = index{client: w.server.Client(), prefix: "reindex:{t}:", docs: 3*page + 1}
	w.rebuild(s, "v0", func() {})
	return w
}

// rebuild rebuilds the index and calls after after each Redis command or pipeline.
func (w *world) rebuild(s strategy, version string, after func()) {
	w.t.Helper()
	ix := w.ix
	ix.client = w.server.Client()
	ix.client.AddHook(afterEach(after))
	settlement, err := s.rebuild(context.Background(), ix, version)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, update := range settlement.State { // in one step, like the settle script
		if err := w.ix.client.HSet(context.Background(), update.Key, update.Fields).Err(); err != nil {
			w.t.Fatal(err)
		}
	}
	after()
}

func (w *world) see(s strategy) sight {
	w.t.Helper()
	hash, err := s.open(context.Background(), w.ix)
	if err != nil {
		w.t.Fatal(err)
	}
	seen, err := w.ix.read(context.Background(), hash)
	if err != nil {
		w.t.Fatal(err)
	}
	return seen
}

func TestReadsBetweenTheStepsOfARebuild(t *testing.T) {
	for name, want := range map[string]map[sight]bool{
		"in place":              {complete: true, incomplete: true},
		"in place under a lock": {complete: true, incomplete: true},
		"soft delete":           {complete: true, mixed: true},
		"blue-green":            {complete: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := strategyNamed(t, name)
			w := newWorld(t, s)
			seen := map[sight]bool{}
			for _, version := range []string{"v1", "v2", "v3"} {
				w.rebuild(s, version, func() { seen[w.see(s)] = true })
			}
			for each := range mixed + 1 {
				if seen[each] != want[each] {
					t.Errorf("sight %d seen: %t; want %t", each, seen[each], want[each])
				}
			}
			if w.see(s) != complete {
				t.Error("not complete after the rebuild")
			}
		})
	}
}

func TestConcurrentRebuildsInPlaceLeaveAMix(t *testing.T) {
	s := strategyNamed(t, "in place")
	w := newWorld(t, s)
	w.rebuild(s, "v1", func() {
		if w.ix.client.HLen(context.Background(), w.ix.live()).Val() == page { // the first page is written
			w.rebuild(s, "v2", func() {})
		}
	})
	if seen := w.see(s); seen != mixed {
		t.Errorf("sight %d; want a mix that persists until the next rebuild", seen)
	}
}

func TestReaderKeepsItsGenerationAfterTwoRebuilds(t *testing.T) {
	s := strategyNamed(t, "blue-green")
	w := newWorld(t, s)
	hash, err := s.open(context.Background(), w.ix)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1", "v2"} {
		w.rebuild(s, version, func() {})
	}
	if seen, err := w.ix.read(context.Background(), hash); err != nil || seen != complete {
		t.Errorf("sight %d, %v", seen, err)
	}
	if ttl := w.ix.client.PTTL(context.Background(), hash).Val(); ttl <= 0 || ttl > grace {
		t.Errorf("the generation's TTL is %v; want at most %v", ttl, grace)
	}
}

func TestTable(t *testing.T) {
	server := redistest.Start(t)
	b := bench{docs: 2 * page, readers: 2, rounds: 5, pause: time.Millisecond, log: slog.New(slog.DiscardHandler)}
	var out strings.Builder
	if err := b.run(context.Background(), server.Addr, &out); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(rows) != 1+len(strategies) {
		t.Fatalf("the table has %d rows:\n%s", len(rows), &out)
	}
	for _, row := range rows[1:] {
		cells := strings.Fields(row)
		if cells[len(cells)-1] != "10" {
			t.Errorf("want 10 rebuilds: %s", row)
		}
		if strings.Contains(row, "blue-green") && !strings.Contains(row, "100.000 %") {
			t.Errorf("blue-green was not always available: %s", row)
		}
	}
	if left := server.Client().DBSize(context.Background()).Val(); left != 0 {
		t.Errorf("%d keys left behind", left)
	}
}

func TestEmbeddedRedis(t *testing.T) {
	b := bench{docs: page, readers: 1, rounds: 1, log: slog.New(slog.DiscardHandler)}
	var out strings.Builder
	if err := b.run(t.Context(), "", &out); err != nil || strings.Count(out.String(), "\n") != 1+len(strategies) {
		t.Errorf("%v\n%s", err, &out)
	}
	if err := b.run(t.Context(), "127.0.0.1:1", &out); err == nil || !strings.Contains(err.Error(), "the Redis at 127.0.0.1:1 does not answer") {
		t.Error(err)
	}
}
