package volume

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// resultsWorld is a world whose volume tracks the consumer groups of a results stream.
type resultsWorld struct {
	*world
	client  redis.UniversalClient
	queries int
}

const results = "results"

func newResultsWorld(t *testing.T, keep time.Duration) *resultsWorld {
	w := &resultsWorld{world: newWorld(t), client: redistest.Start(t).Client()}
	w.create(map[string]string{"a": "1"})
	w.volume = w.open(w.volume.Root(), Config{Grace: 1, KeepNamed: keep, Results: func(ctx context.Context) (Horizon, error) {
		w.queries++
		latest, unsettled, err := stream.ReadWatermarks(ctx, w.client, results)
		return Horizon{Latest: latest, Unsettled: unsettled}, err
	}})
	return w
}

// settle syncs and adds the result to the stream, as the router does.
func (w *resultsWorld) settle() (res SyncResult, entry string) {
	w.t.Helper()
	res = w.sync("")
	return res, testenv.Must(w.client.XAdd(w.t.Context(), &redis.XAddArgs{Stream: results, Values: []string{"tree", res.Tree}}).Result())(w.t)
}

func (w *resultsWorld) group(name string) {
	w.t.Helper()
	testenv.Must(0, w.client.XGroupCreateMkStream(w.t.Context(), results, name, "0").Err())(w.t)
}

// read reads the next result in a group without acknowledging it.
func (w *resultsWorld) read(group string) {
	w.t.Helper()
	testenv.Must(w.client.XReadGroup(w.t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{results, ">"}, Count: 1, Block: -1}).Result())(w.t)
}

func (w *resultsWorld) ack(group, entry string) {
	w.t.Helper()
	if n := testenv.Must(w.client.XAck(w.t.Context(), results, group, entry).Result())(w.t); n != 1 {
		w.t.Fatalf("%s was not pending", entry)
	}
}

func TestTreeStaysWhileUnsettledResultNamesIt(t *testing.T) {
	t.Parallel()
	w := newResultsWorld(t, time.Hour)
	w.group("fast")
	w.group("slow")
	first, entry := w.settle()
	w.push(map[string]string{"a": "2"})
	second, next := w.settle()
	w.push(map[string]string{"a": "3"})
	w.settle()
	stays := func(when string, trees ...SyncResult) {
		t.Helper()
		w.sync("")
		for _, res := range []SyncResult{first, second} {
			want := false
			for _, tree := range trees {
				want = want || tree.Tree == res.Tree
			}
			if got := isThere(t, w.path(res.Tree)); got != want {
				t.Errorf("%s: %s is there: %v, want %v", when, res.Tree, got, want)
			}
		}
	}
	stays("no group has read", first, second)
	w.read("fast")
	w.ack("fast", entry)
	stays("one of two has settled the first", first, second)
	w.read("slow")
	stays("the other has it in hand", first, second)
	w.ack("slow", entry)
	stays("both have settled the first", second)
	w.read("fast")
	w.ack("fast", next)
	stays("one has settled the second", second)
	testenv.Must(0, w.client.XGroupDestroy(t.Context(), results, "slow").Err())(t)
	stays("the other is no more")
	mustBeTidy(t, w.world)
}

func TestGraceAloneCountsWithoutGroups(t *testing.T) {
	t.Parallel()
	w := newResultsWorld(t, time.Hour)
	first, _ := w.settle()
	w.push(map[string]string{"a": "2"})
	w.settle()
	w.sync("")
	if isThere(t, w.path(first.Tree)) {
		t.Error("the tree stays, although there is no consumer group")
	}
}

func TestAbandonedGroupsKeepTreesForLimitedTime(t *testing.T) {
	t.Parallel()
	const keep = time.Hour
	w := newResultsWorld(t, keep)
	w.group("abandoned")
	first, _ := w.settle()
	w.push(map[string]string{"a": "2"})
	w.settle()
	mark := w.volume.folder(repoPath(t, widgets)).mark(first.Tree[len(first.Tree)-len("1-123456789012"):])
	for _, age := range []time.Duration{keep - time.Minute, keep + time.Minute} {
		then := time.Now().Add(-age)
		testenv.Must(0, os.Chtimes(mark, then, then))(t)
		w.sync("")
		if got, want := isThere(t, w.path(first.Tree)), age < keep; got != want {
			t.Errorf("after %v the tree is there: %v, want %v", age, got, want)
		}
	}
}

func TestTreesStayIfResultsAreUnavailable(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]string{"when a tree is retired": "retire", "when its grace is over": "recycle"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newResultsWorld(t, time.Hour)
			ask, fail := w.volume.cfg.Results, false
			w.volume.cfg.Results = func(ctx context.Context) (Horizon, error) {
				if fail {
					return Horizon{}, errors.New("redis is away")
				}
				return ask(ctx)
			}
			first, _ := w.settle()
			w.push(map[string]string{"a": "2"})
			fail = failing == "retire"
			w.settle()
			fail = !fail
			w.sync("")
			if !isThere(t, w.path(first.Tree)) {
				t.Fatal("the tree was deleted although the query failed")
			}
			fail = false
			w.sync("")
			if got, want := isThere(t, w.path(first.Tree)), failing == "retire"; got != want {
				t.Errorf("with an answer, the tree is there: %v, want %v", got, want)
			}
		})
	}
}

func TestResultsAreQueriedAtMostOncePerSync(t *testing.T) {
	t.Parallel()
	w := newResultsWorld(t, time.Hour)
	w.group("slow")
	sync := func(want int, when string) {
		t.Helper()
		w.queries = 0
		w.settle()
		if w.queries != want {
			t.Errorf("%s: %d queries, want %d", when, w.queries, want)
		}
	}
	sync(0, "the first time")
	sync(0, "nothing new")
	w.push(map[string]string{"a": "2"})
	sync(1, "a tree to retire")
	sync(1, "one past its grace")
	w.push(map[string]string{"a": "3"})
	sync(1, "both")
	w.volume.cfg.Grace = time.Hour
	sync(0, "all within their grace")
}

func TestRetiredTreeIsNamed(t *testing.T) {
	t.Parallel()
	known := horizon{Horizon{Latest: "9-0"}, true, true}
	behind := horizon{Horizon{Latest: "9-0", Unsettled: "5-1"}, true, true}
	for name, tc := range map[string]struct {
		mark string
		h    horizon
		want bool
	}{
		"settled":                      {"5-0", behind, false},
		"the very one is unsettled":    {"5-1", behind, true},
		"a later one":                  {"5-2", behind, true},
		"nothing is unsettled":         {"8-0", known, false},
		"there were no results at all": {"0-0", behind, false},
		"an empty mark":                {"", known, true},
		"half a mark":                  {"17952", behind, true},
		"not asked":                    {"5-0", horizon{}, true},
		"no answer":                    {"5-0", horizon{queried: true}, true},
	} {
		if got := (retiredTree{lastNamed: tc.mark}).isNamed(tc.h); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
