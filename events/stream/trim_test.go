package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// wholeNodes limits nodes to one entry, so that trimming with "~" is exact, as in the embedded Redis.
var wholeNodes = []string{"--stream-node-max-entries", "1"}

// old adds n entries with IDs from 1-0 on, older than any retention.
func old(t testing.TB, client redis.UniversalClient, key string, n int) {
	t.Helper()
	ctx := context.Background()
	from := int64(0)
	if last := client.XRevRangeN(ctx, key, "+", "-", 1).Val(); len(last) > 0 {
		fmt.Sscan(last[0].ID[:len(last[0].ID)-len("-0")], &from)
	}
	pipe := client.Pipeline()
	for i := range int64(n) {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: fmt.Sprintf("%d-0", from+i+1), Values: []string{"n", "1"}})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
}

// read creates a group, reads n entries and acknowledges all but the given ones.
func read(t testing.TB, client redis.UniversalClient, key, group string, n int, keep ...string) {
	t.Helper()
	ctx := context.Background()
	client.XGroupCreateMkStream(ctx, key, group, "0")
	if n == 0 {
		return
	}
	got, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{key, ">"}, Count: int64(n), Block: -1}).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got[0].Messages {
		if !slices.Contains(keep, m.ID) {
			client.XAck(ctx, key, group, m.ID)
		}
	}
}

// trims collects what a Trimmer observes for one stream.
type trims struct {
	stream string
	mu     sync.Mutex
	stream.Trim
	lost int64
}

func (s *trims) observe(one stream.Trim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.Stream == s.stream {
		s.Settled, s.Aged, s.Capped, s.Lost = s.Settled+one.Settled, s.Aged+one.Aged, s.Capped+one.Capped, one.Lost
		for _, n := range one.Lost {
			s.lost += n
		}
	}
}

func TestTrimStopsAtTheSlowestGroup(t *testing.T) {
	t.Parallel()
	type counts struct{ settled, aged, capped, lost int64 }
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, client redis.UniversalClient)
		maxLen  int64
		first   string // ID of the first remaining entry, "" for none
		length  int64
		want    counts
	}{
		"no group has read": {
			prepare: func(t *testing.T, c redis.UniversalClient) { old(t, c, topic, 10); read(t, c, topic, "g", 0) },
			first:   "1-0", length: 10,
		},
		"all have read and settled": { // the floor is the last entry read
			prepare: func(t *testing.T, c redis.UniversalClient) { old(t, c, topic, 10); read(t, c, topic, "g", 10) },
			first:   "10-0", length: 1, want: counts{settled: 9},
		},
		"one is slower": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 10)
				read(t, c, topic, "fast", 10)
				read(t, c, topic, "slow", 4)
			},
			first: "4-0", length: 7, want: counts{settled: 3},
		},
		"one has an entry pending": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 10)
				read(t, c, topic, "g", 10, "3-0", "7-0")
			},
			first: "3-0", length: 8, want: counts{settled: 2},
		},
		"what is pending was trimmed before": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 10)
				read(t, c, topic, "g", 10, "3-0")
				c.XDel(context.Background(), topic, "3-0")
			},
			first: "10-0", length: 1, want: counts{settled: 8},
		},
		"settled, and young": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 5)
				publish(t, c, 5)
				read(t, c, topic, "g", 10)
			},
			first: "*", length: 5, want: counts{settled: 5},
		},
		"no group, and old": {
			prepare: func(t *testing.T, c redis.UniversalClient) { old(t, c, topic, 10); publish(t, c, 1) },
			first:   "*", length: 1, want: counts{aged: 10},
		},
		"no group, and too many": {
			prepare: func(t *testing.T, c redis.UniversalClient) { publish(t, c, 10) },
			maxLen:  4, first: "*", length: 4, want: counts{capped: 6},
		},
		"too many, and a group has read none": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 350)
				read(t, c, topic, "fast", 350)
				read(t, c, topic, "g", 0)
			},
			maxLen: 20, first: "331-0", length: 20, want: counts{capped: 330, lost: 330},
		},
		"too many, and only one of them is missed": {
			prepare: func(t *testing.T, c redis.UniversalClient) {
				old(t, c, topic, 250)
				read(t, c, topic, "g", 250, "2-0")
			},
			maxLen: 100, first: "250-0", length: 1, want: counts{settled: 249 - 101 + 1, capped: 101 - 1, lost: 1},
		},
		"there is no stream": {prepare: func(*testing.T, redis.UniversalClient) {}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			client := redistest.Start(t, wholeNodes...).Client()
			tc.prepare(t, client)
			got := &trims{stream: topic}
			trimmer := &stream.Trimmer{Redis: client, Observe: got.observe, Streams: []stream.Retention{{Topic: topic, MaxLen: tc.maxLen}}}
			for range 2 { // the second pass has nothing to do
				if err := trimmer.Pass(ctx); err != nil {
					t.Fatal(err)
				}
			}
			left := entries(t, client, topic)
			if int64(len(left)) != tc.length || tc.length > 0 && tc.first != "*" && left[0].ID != tc.first {
				t.Errorf("%d entries left, of %v; want %d from %s on", len(left), left, tc.length, tc.first)
			}
			if c := (counts{got.Settled, got.Aged, got.Capped, got.lost}); c != tc.want {
				t.Errorf("observed %+v; want %+v", c, tc.want)
			}
		})
	}
}

func TestOnlyTheCapRemovesPartOfANode(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client() // a hundred entries per node
	old(t, client, topic, 1050)
	read(t, client, topic, group, 1050)
	for _, tc := range []struct{ maxLen, least, most int64 }{{1000, 1, 100}, {7, 1, 7}} {
		got := &trims{stream: topic}
		if err := (&stream.Trimmer{Redis: client, Observe: got.observe, Streams: []stream.Retention{{Topic: topic, MaxLen: tc.maxLen}}}).Pass(ctx); err != nil {
			t.Fatal(err)
		}
		if n := length(t, client, topic); n < tc.least || n > tc.most || got.lost != 0 {
			t.Errorf("cap %d: %d entries left, %d missed; want %d to %d, none missed", tc.maxLen, n, got.lost, tc.least, tc.most)
		}
	}
}

// Passes at random moments are compared with a model of what each group has settled.
func TestTrimKeepsUnsettledEntriesBelowTheCap(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t, wholeNodes...).Client()
	run := 0
	rapid.Check(t, func(r *rapid.T) {
		run++
		key := fmt.Sprintf("lockstep:{0}:s%d", run)
		groups := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(r, "groups")]
		limit := rapid.Int64Range(5, 60).Draw(r, "cap")
		got := &trims{stream: key}
		trimmer := &stream.Trimmer{Redis: client, Observe: got.observe, Streams: []stream.Retention{{Topic: key, MaxLen: limit}}}
		unsettled := map[string]map[string]bool{} // IDs by group
		for _, g := range groups {
			read(t, client, key, g, 0)
			unsettled[g] = map[string]bool{}
		}
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			before := len(entries(t, client, key))
			n := rapid.IntRange(0, 40).Draw(r, "added")
			old(t, client, key, n)
			for _, m := range entries(t, client, key)[before:] {
				for _, g := range groups {
					unsettled[g][m.ID] = true
				}
			}
			for _, g := range groups {
				if n := rapid.IntRange(0, 50).Draw(r, "read"); n > 0 {
					client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: g, Consumer: "c", Streams: []string{key, ">"}, Count: int64(n), Block: -1})
				}
				for _, p := range client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: key, Group: g, Start: "-", End: "+", Count: 1000}).Val() {
					if rapid.IntRange(0, 3).Draw(r, "settles") > 0 {
						client.XAck(ctx, key, g, p.ID)
						delete(unsettled[g], p.ID)
					}
				}
			}
			overfull := int64(len(entries(t, client, key))) > limit
			if err := trimmer.Pass(ctx); err != nil {
				r.Fatal(err)
			}
			left := map[string]bool{}
			for _, m := range entries(t, client, key) {
				left[m.ID] = true
			}
			if int64(len(left)) > limit {
				r.Fatalf("%d entries left; want %d at most", len(left), limit)
			}
			for _, g := range groups {
				lost := int64(0)
				for id := range unsettled[g] {
					if !left[id] {
						lost++
						delete(unsettled[g], id) // as the subscriber does
						client.XAck(ctx, key, g, id)
					}
				}
				if lost > 0 && !overfull || lost != got.Lost[g] {
					r.Fatalf("group %s lost %d entries, told of %d; over the cap: %t", g, lost, got.Lost[g], overfull)
				}
			}
		}
	})
}

func TestEntryDroppedByTheCapIsLoggedWithItsGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t, wholeNodes...).Client()
	old(t, client, topic, 30)
	read(t, client, topic, "fast", 30)
	read(t, client, topic, "abandoned", 5)
	log := &logged{}
	trimmer := &stream.Trimmer{Redis: client, Streams: []stream.Retention{{Topic: topic, MaxLen: 10}}, Log: slog.New(slog.NewTextHandler(log, nil))}
	for range 2 {
		if err := trimmer.Pass(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if log.count("level=ERROR") != 1 || log.count("group=abandoned dropped=15") != 1 || log.count("held_back_by=abandoned held_back_at=5-0") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestConcurrentTrimmers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t, wholeNodes...)
	client := server.Client()
	old(t, client, topic, 500)
	read(t, client, topic, "g", 100, "50-0")
	total := &trims{stream: topic}
	var wg sync.WaitGroup
	for range 8 {
		trimmer := &stream.Trimmer{Redis: server.Client(), Observe: total.observe, Streams: []stream.Retention{{Topic: topic, MaxLen: 300}}}
		wg.Go(func() {
			for range 5 {
				if err := trimmer.Pass(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// 200 entries are above the cap: 50-0 is pending, and of the 200 oldest 100 were never read.
	if n := length(t, client, topic); n != 300 || total.Settled+total.Capped != 200 || total.lost != 101 {
		t.Errorf("%d entries left, observed %d and %d removed, %d of them lost; want 300, 200 together, 101", n, total.Settled, total.Capped, total.lost)
	}
}

func TestDeadLettersAreTrimmedByAgeAndNumber(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.Start(t).Client()
	old(t, client, dead, 7)
	for range 250 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []string{"reason", "r"}})
	}
	got := &trims{stream: dead}
	if err := (&stream.Trimmer{Redis: client, DeadLen: 201, Observe: got.observe}).Pass(ctx); err != nil {
		t.Fatal(err)
	}
	if n := length(t, client, dead); n != 201 || got.Aged != 7 || got.Capped != 49 {
		t.Errorf("%d letters left, observed %d too old and %d too many; want 201, 7, 49", n, got.Aged, got.Capped)
	}
}

func TestDeadLettersAreTrimmedByMemory(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := redistest.StartReal(t).Client() // the embedded Redis does not support MEMORY USAGE
	const most = 300_000
	for i := range 100 {
		size := 100 // some letters are small, and the newest alone is too large
		if i%3 == 0 {
			size = 20_000
		}
		if i == 99 {
			size = 2 * most
		}
		client.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []string{"n", fmt.Sprint(i), "original:payload", strings.Repeat("x", size)}})
	}
	log, got := &logged{}, &trims{stream: dead}
	trimmer := &stream.Trimmer{Redis: client, DeadBytes: most, Observe: got.observe, Log: slog.New(slog.NewTextHandler(log, nil))}
	pass := func() (left int64) {
		t.Helper()
		if err := trimmer.Pass(ctx); err != nil {
			t.Fatal(err)
		}
		return length(t, client, dead)
	}
	if left := pass(); left != 1 || got.Capped != 99 || log.count("too_large=99") != 1 {
		t.Errorf("%d letters left, %d too large; want the newest alone; log:\n%s", left, got.Capped, log)
	}
	client.XTrimMaxLen(ctx, dead, 0)
	for range 100 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []string{"original:payload", strings.Repeat("x", 10_000)}})
	}
	left := pass()
	if bytes := client.MemoryUsage(ctx, dead, 0).Val(); bytes > most || left < 15 {
		t.Errorf("%d letters left, %d bytes; want as many as fit in %d bytes", left, bytes, most)
	}
	if again := pass(); again != left {
		t.Errorf("%d letters left after another pass, %d before", again, left)
	}
}

// TestManyLargeDeadLettersAreTrimmedInSteps has four times as many as one step of a pass removes.
func TestManyLargeDeadLettersAreTrimmedInSteps(t *testing.T) {
	testenv.SkipUnderRace(t)
	testenv.Long(t)
	t.Parallel()
	ctx := context.Background()
	client := redistest.StartReal(t).Client() // the embedded Redis does not support MEMORY USAGE
	const most = 16 << 20
	for range 272 {
		client.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []string{"original:payload", strings.Repeat("x", 1<<20)}})
	}
	got := &trims{stream: dead}
	client.ConfigResetStat(ctx)
	if err := (&stream.Trimmer{Redis: client, DeadBytes: most, Observe: got.observe}).Pass(ctx); err != nil {
		t.Fatal(err)
	}
	if bytes, left := client.MemoryUsage(ctx, dead, 0).Val(), length(t, client, dead); bytes > most || left < 8 || got.Capped != 272-left {
		t.Errorf("%d letters left, %d bytes, %d removed", left, bytes, got.Capped)
	}
	if stats := client.Info(ctx, "commandstats").Val(); !regexp.MustCompile(`cmdstat_memory\|usage:calls=([5-9]|1\d),`).MatchString(stats) {
		t.Errorf("want a step of 64 MiB for each call: %s", stats)
	}
}

func TestTrimmerSurvivesRedisRestart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	server := redistest.Start(t, append(wholeNodes, "--appendonly", "yes", "--appendfsync", "always")...)
	client := server.Client()
	server.Stop()
	log := &logged{}
	trimmer := &stream.Trimmer{Redis: server.Client(), Every: 5 * time.Millisecond,
		Streams: []stream.Retention{{Topic: topic}}, Log: slog.New(slog.NewTextHandler(log, nil))}
	var wg sync.WaitGroup
	wg.Go(func() { trimmer.Run(ctx) })
	eventually(t, "the outage is logged", func() bool { return log.count("cannot trim streams") == 1 })
	server.Restart()
	eventually(t, "the recovery is logged", func() bool { return log.count("stream trimming recovered") == 1 })
	old(t, client, topic, 10)
	eventually(t, "it trims", func() bool { return length(t, client, topic) == 0 })
	cancel()
	wg.Wait()
	if n := log.count("level=WARN"); n != 1 {
		t.Errorf("%d warnings; want one:\n%s", n, log)
	}
}

func TestTrimmerRefusesInvalidFields(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for name, trimmer := range map[string]*stream.Trimmer{
		"no Redis":       {},
		"no topic":       {Redis: client, Streams: []stream.Retention{{}}},
		"a negative cap": {Redis: client, Streams: []stream.Retention{{Topic: topic, MaxLen: -1}}},
		"a negative age": {Redis: client, DeadAge: -1},
	} {
		if trimmer.Pass(t.Context()) == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
