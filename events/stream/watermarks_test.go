package stream_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

type marks struct{ latest, unsettled string }

func TestWatermarks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange func(t *testing.T, client redis.UniversalClient)
		want    marks
	}{
		"no stream":       {func(*testing.T, redis.UniversalClient) {}, marks{latest: "0-0"}},
		"an empty stream": {func(t *testing.T, c redis.UniversalClient) { read(t, c, "s", "g", 0) }, marks{latest: "0-0"}},
		"what was trimmed holds nothing back": {func(t *testing.T, c redis.UniversalClient) {
			old(t, c, "s", 5)
			read(t, c, "s", "g", 2, "1-0", "2-0")
			c.XTrimMinID(t.Context(), "s", "4-0")
		}, marks{"5-0", "4-0"}},
		"trimmed to nothing": {func(t *testing.T, c redis.UniversalClient) {
			old(t, c, "s", 5)
			read(t, c, "s", "g", 2, "1-0")
			c.XTrimMaxLen(t.Context(), "s", 0)
		}, marks{latest: "0-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client()
			tc.arrange(t, client)
			latest, unsettled, err := stream.ReadWatermarks(t.Context(), client, "s")
			if got := (marks{latest, unsettled}); err != nil || got != tc.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

// The unsettled watermark is the lowest ID that any group has not settled.
func TestUnsettledWatermarkIsTheOldestUnsettledEntry(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	ctx, run := context.Background(), 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		key, n := fmt.Sprintf("s%d", run), rapid.IntRange(1, 15).Draw(rt, "entries")
		old(t, client, key, n)
		want := ""
		for g := range rapid.IntRange(0, 3).Draw(rt, "groups") {
			readTo := rapid.IntRange(0, n).Draw(rt, "read")
			kept := rapid.SliceOfN(rapid.IntRange(1, n), 0, 2).Draw(rt, "kept")
			var keep []string
			least := readTo + 1
			for _, k := range kept {
				keep = append(keep, fmt.Sprintf("%d-0", k))
				if k <= readTo {
					least = min(least, k)
				}
			}
			read(t, client, key, fmt.Sprint("g", g), readTo, keep...)
			if id := fmt.Sprintf("%d-0", least); least <= n && (want == "" || events.EntryAfter(want, id)) {
				want = id
			}
		}
		latest, unsettled, err := stream.ReadWatermarks(ctx, client, key)
		if err != nil || latest != fmt.Sprintf("%d-0", n) || unsettled != want {
			rt.Errorf("got %s, %s, %v; want %d-0 and %s", latest, unsettled, err, n, want)
		}
	})
}

func TestWatermarksOfAKeyThatIsNotAStream(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	client.Set(t.Context(), "s", "1", 0)
	if got, _, err := stream.ReadWatermarks(t.Context(), client, "s"); err == nil {
		t.Errorf("got %+v of a string", got)
	}
}
