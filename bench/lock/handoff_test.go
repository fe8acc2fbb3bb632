package lock

import (
	"strings"
	"testing"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// grants reads lines of "<process> <waiter> <asked> <granted> <released>", as merged from workers.
func grants(t *testing.T, lines ...string) []grant {
	t.Helper()
	var all []grant
	for _, line := range lines {
		process, rest, _ := strings.Cut(line, " ")
		g, err := parseGrant(int(process[0]-'0'), rest)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	return all
}

func TestFiguresOfAContest(t *testing.T) {
	two := contention{Processes: 2, Waiters: 1, Span: rig.Span{From: 0, To: 100}}
	for name, tc := range map[string]struct {
		in    contention
		lines []string
		want  HandOffs
	}{
		"nobody ever got it": {in: two, want: HandOffs{LongestWait: 100, PerProcess: stats.Spread{Ratio: 1}, PerWaiter: stats.Spread{Ratio: 1}}},
		"taking turns, whichever process reports first": {
			in: two,
			lines: []string{
				"1 0 0 25 45", "1 0 45 75 95", // after 5, and after 10
				"0 0 0 0 20", "0 0 20 50 65", // after 5
			},
			want: HandOffs{
				Grants: 4, Busy: 0.75,
				HandOff: stats.Latency{P50: 5, P99: 10, Max: 10}, Between: stats.Latency{P50: 5, P99: 10, Max: 10},
				LongestWait: 35, // of process 0 at the end
				PerProcess:  stats.Spread{Fewest: 2, Most: 2, Ratio: 1}, PerWaiter: stats.Spread{Fewest: 2, Most: 2, Ratio: 1},
			},
		},
		"the same process again does not count as between": {
			in:    two,
			lines: []string{"0 0 0 0 10", "0 0 10 11 20", "1 0 0 24 98"},
			want: HandOffs{
				Grants: 3, Busy: 0.93,
				HandOff: stats.Latency{P50: 1, P99: 4, Max: 4}, Between: stats.Latency{P50: 4, P99: 4, Max: 4},
				LongestWait: 80,
				PerProcess:  stats.Spread{Fewest: 1, Most: 2, Ratio: 0.5}, PerWaiter: stats.Spread{Fewest: 1, Most: 2, Ratio: 0.5},
			},
		},
		"a starved waiter's wait counts though it has no line": {
			in:    contention{Processes: 1, Waiters: 2, Span: rig.Span{From: 0, To: 100}},
			lines: []string{"0 1 0 0 50", "0 1 50 50 100"},
			want: HandOffs{
				Grants: 2, Busy: 1, LongestWait: 100,
				PerProcess: stats.Spread{Fewest: 2, Most: 2, Ratio: 1}, PerWaiter: stats.Spread{Fewest: 0, Most: 2, Ratio: 0},
			},
		},
		"two holders at once": {
			in:    two,
			lines: []string{"0 0 0 0 50", "1 0 0 40 45", "1 0 45 49 100", "0 0 50 100 100"},
			want: HandOffs{
				Grants: 3, Busy: 1.06, Overlaps: 2, LongestWait: 50,
				PerProcess: stats.Spread{Fewest: 1, Most: 2, Ratio: 0.5}, PerWaiter: stats.Spread{Fewest: 1, Most: 2, Ratio: 0.5},
			},
		},
		"what came before and after is left out, but for the wait it cut": {
			in:    contention{Processes: 2, Waiters: 1, Span: rig.Span{From: 100, To: 200}},
			lines: []string{"0 0 0 10 20", "1 0 0 90 110", "0 0 20 120 150", "1 0 110 210 250"},
			want: HandOffs{
				Grants: 1, Busy: 0.4,
				HandOff: stats.Latency{P50: 10, P99: 10, Max: 10}, Between: stats.Latency{P50: 10, P99: 10, Max: 10},
				LongestWait: 90,
				PerProcess:  stats.Spread{Fewest: 0, Most: 1}, PerWaiter: stats.Spread{Fewest: 0, Most: 1},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.GrantsPerSecond = float64(tc.want.Grants) / time.Duration(100).Seconds()
			if got := summarize(tc.in, grants(t, tc.lines...)); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestParseGrantRejectsBadLines(t *testing.T) {
	for name, line := range map[string]string{
		"empty":            "",
		"too short":        "0 1 2",
		"too long":         "0 1 2 3 4",
		"no number":        "0 1 2 x",
		"negative waiter":  "-1 1 2 3",
		"granted too soon": "0 3 2 4",
		"released before":  "0 1 3 2",
	} {
		if g, err := parseGrant(0, line); err == nil {
			t.Errorf("%s: %q is %+v; want an error", name, line, g)
		}
	}
}

func TestMediansOfRoundsKeepTheWorstWaitAndEveryOverlap(t *testing.T) {
	rounds := []HandOffs{
		{Grants: 10, Busy: 0.9, Between: stats.Latency{P99: 7}, LongestWait: 3, PerWaiter: stats.Spread{Fewest: 1, Most: 2, Ratio: 0.5}},
		{Grants: 30, Busy: 0.7, Between: stats.Latency{P99: 9}, LongestWait: 9, Overlaps: 1, PerWaiter: stats.Spread{Fewest: 3, Most: 3, Ratio: 1}},
		{Grants: 20, Busy: 0.8, Between: stats.Latency{P99: 8}, LongestWait: 4, Overlaps: 2, PerWaiter: stats.Spread{Fewest: 0, Most: 9, Ratio: 0}},
	}
	want := HandOffs{
		Grants: 20, Busy: 0.8, Between: stats.Latency{P99: 8}, LongestWait: 9, Overlaps: 3,
		PerWaiter: stats.Spread{Fewest: 1, Most: 3, Ratio: 0.5},
	}
	if got := medianHandOffs(rounds); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := medianHandOffs(nil); got != (HandOffs{}) {
		t.Errorf("of no rounds: %+v; want zeros", got)
	}
}
