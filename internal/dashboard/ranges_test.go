package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/rollup"
)

type fakeRollups struct {
	points []rollup.Point

	mu    sync.Mutex
	asked []time.Duration
	err   error
}

func (f *fakeRollups) Read(_ context.Context, since, until time.Time, step time.Duration) ([]rollup.Point, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, until.Sub(since).Round(step), step)
	return f.points, f.err
}

// seriesOf returns the series of the charts on a page.
func seriesOf(t *testing.T, page string) (s series) {
	t.Helper()
	_, text, ok := strings.Cut(page, `id="charts" sse-swap="charts" hidden>`)
	text, _, _ = strings.Cut(text, "<")
	if err := json.Unmarshal([]byte(text), &s); !ok || err != nil {
		t.Fatalf("no series: %v: %s", err, text)
	}
	return s
}

func TestLongerRangesLeaveMissingDataOut(t *testing.T) {
	t.Parallel()
	hour := time.Now().UTC().Truncate(time.Hour)
	past := &fakeRollups{points: []rollup.Point{
		{At: hour.Add(-3 * time.Hour), Known: true, Counts: [rollup.Outcomes]int64{5, 4, 3, 2}},
		{At: hour.Add(-2 * time.Hour)},
		{At: hour.Add(-time.Hour), Known: true},
	}}
	d := startDesk(t, func(cfg *Config) { cfg.Rollups = past })
	d.board.rollups.kept = time.Minute
	page := d.page("/?range=7d", nil)
	s := seriesOf(t, page)
	if want := []int64{hour.Add(-3 * time.Hour).Unix(), hour.Add(-time.Hour).Unix()}; !s.Gaps || !slices.Equal(s.At, want) || s.Step != 3600 || s.Span != 7*24*3600 {
		t.Errorf("series %+v, want the two known hours", s)
	}
	if s.Counts[0][0] != 5 || s.Counts[3][0] != 2 || s.Counts[0][1] != 0 || s.Delays[0][0] != nil {
		t.Errorf("series %+v, want the counts of the first, and no latency", s)
	}
	if !strings.Contains(page, `href="/?range=7d" aria-current="true"`) || !strings.Contains(page, hour.Add(-3*time.Hour).Format("2006-01-02 15:04")) || strings.Count(page, `<tr id="m-`) != 1 {
		t.Error("the range is not marked, or the table has not the only hour with results")
	}
	d.page("/?range=7d", nil)
	if len(past.asked) != 2 || past.asked[1] != time.Hour || past.asked[0] < 6*24*time.Hour {
		t.Errorf("asked for %v, want a week by the hour, once", past.asked)
	}
	if s := seriesOf(t, d.page("/?range=bogus", nil)); s.Gaps || s.Span != 900 {
		t.Errorf("an unknown range is not the default: %+v", s)
	}
	f := d.follow("page=overview&range=7d", nil)
	f.await("edge", "null")
	past.mu.Lock()
	past.err = errors.New("no")
	past.mu.Unlock()
	if resp, _ := d.visit("GET", "/?range=6h", nil, nil); resp.StatusCode != 503 {
		t.Errorf("failed: %d, want 503", resp.StatusCode)
	}
}

// TestRollupsAreReadFromRedis covers the default of Config.Rollups, and a range of which nothing is recorded.
func TestRollupsAreReadFromRedis(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	if page := d.page("/?range=24h", nil); !strings.Contains(page, "Nothing is recorded of this time") {
		t.Error("the page does not say that there is no data")
	}
	r := rollup.NewRecorder(d.client, events.DefaultNamespace)
	r.Count(rollup.Failed, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Run(ctx)
	if s := seriesOf(t, d.page("/?range=1h", nil)); len(s.At) == 0 || slices.Max(s.Counts[outFailed]) != 1 || slices.MaxFunc(s.Delays[0], func(a, b *int64) int {
		return int(value(a) - value(b))
	}) == nil {
		t.Errorf("series %+v, want a failure with its latency", s)
	}
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
