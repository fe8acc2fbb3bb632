package move_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lockstep/events"
	"lockstep/internal/cells/move"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMain(m *testing.M) {
	// go-redis keeps one goroutine per process that it has no way to stop.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.startGlobalTimeCache.func1"))
}

// names returns the repositories that a claim gets.
func names(t *testing.T, q *move.Queue, n int, hold time.Duration) (names []string) {
	t.Helper()
	for _, r := range testenv.Must(q.Claim(t.Context(), n, hold))(t) {
		names = append(names, r.Repo.String())
	}
	return names
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: claimed %v, want %v", what, got, want)
	}
}

func TestBegunMovesAreClaimedFirst(t *testing.T) {
	ctx := t.Context()
	q := move.NewQueue(redistest.Start(t).Client(), events.DefaultNamespace)
	requests := make([]move.Request, 5)
	for i := range requests {
		repo := testenv.Must(events.ParseRepoPath(fmt.Sprintf("acme/r%d", i)))(t)
		requests[i] = move.Request{Repo: repo, From: "eu-1"}
		testenv.Must(q.Request(ctx, requests[i], false))(t)
	}
	want(t, "new", names(t, q, 1, time.Hour), "acme/r0")
	want(t, "while r0 is claimed", names(t, q, 1, 0), "acme/r1") // and not settled, as when its worker dies
	want(t, "interrupted", names(t, q, 1, time.Hour), "acme/r1")

	if err := q.Retry(ctx, requests[0], 0, false); err != nil { // before the mark: behind those not begun
		t.Fatal(err)
	}
	if err := q.Retry(ctx, requests[1], 0, true); err != nil {
		t.Fatal(err)
	}
	want(t, "after failures", names(t, q, 5, time.Hour), "acme/r1", "acme/r2", "acme/r3", "acme/r4", "acme/r0")

	if added := testenv.Must(q.Request(ctx, requests[2], true))(t); added {
		t.Error("a request that is kept was added again")
	}
	want(t, "requested again while it is claimed", names(t, q, 5, time.Hour))
	for _, r := range requests {
		if err := q.Done(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if n := testenv.Must(q.Len(ctx))(t); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}
