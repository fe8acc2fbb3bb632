package lock

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/proctest"
)

// writes reads lines of "<at, ms> <fence> begin|end accepted|refused <pid> <goroutine>".
func writes(t *testing.T, lines ...string) []write {
	t.Helper()
	var all []write
	for _, line := range lines {
		w, err := parseWrite(line)
		if err != nil {
			t.Fatal(err)
		}
		w.At *= time.Millisecond.Nanoseconds()
		all = append(all, w)
	}
	return all
}

func ms(n int64) int64 { return n * time.Millisecond.Nanoseconds() }

func TestJudgeFaults(t *testing.T) {
	const limit = 3 * time.Second // a lease of 2 s, and the slack
	for name, tc := range map[string]struct {
		log    []string
		down   []rig.Span
		want   FaultFigures
		broken string // in the error
	}{
		"taking turns": {
			log: []string{
				"0 7 begin accepted 1 0", "1000 7 end accepted 1 0", "2000 8 begin accepted 1 1", "2500 8 end accepted 1 1",
				"3000 9 begin accepted 2 0", "4000 9 end accepted 2 0",
			},
			want: FaultFigures{Grants: 3, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second},
		},
		"a stopped holder is overtaken and refused": {
			log: []string{
				"100 7 begin accepted 1 0", "2200 8 begin accepted 2 0", "2300 8 end accepted 2 0",
				"2800 7 end refused 1 0", "2900 6 begin refused 1 1",
			},
			want: FaultFigures{
				Grants: 3, Takeovers: 1, Refused: 2,
				LongestGap: 2100 * time.Millisecond, LongestGapUp: 2100 * time.Millisecond, GapUpAt: 100 * time.Millisecond,
			},
		},
		"what was refused after the run still counts": {
			log:  []string{"2000 8 begin accepted 1 0", "2001 8 end accepted 1 0", "4500 7 end refused 2 0", "4600 9 begin accepted 1 0"},
			want: FaultFigures{Grants: 1, Refused: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second},
		},
		"an end below an accepted begin was accepted": {
			log: []string{"1000 7 begin accepted 1 0", "2000 8 begin accepted 2 0", "2100 7 end accepted 1 0"},
			want: FaultFigures{
				Grants: 2, Takeovers: 1, Inversions: 1,
				LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second, GapUpAt: 2 * time.Second,
			},
			broken: "accepted fence inversions: 1",
		},
		"a begin below an accepted one was accepted": {
			log: []string{"1000 8 begin accepted 1 0", "1100 8 end accepted 1 0", "2000 7 begin accepted 2 0", "2001 7 end accepted 2 0"},
			want: FaultFigures{
				Grants: 2, Inversions: 2,
				LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second, GapUpAt: 2 * time.Second,
			},
			broken: "accepted fence inversions: 2",
		},
		"two processes had one fence": {
			log: []string{"2000 7 begin accepted 1 0", "2100 7 end accepted 2 0", "2200 7 end accepted 1 0"},
			want: FaultFigures{
				Grants: 1, TwoOwners: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second,
			},
			broken: "fences with two owners: 1",
		},
		"two goroutines had one fence, though both were refused": {
			log: []string{"2000 9 begin accepted 1 0", "2001 9 end accepted 1 0", "2100 7 end refused 2 0", "2200 7 end refused 2 1"},
			want: FaultFigures{
				Grants: 1, Refused: 2, TwoOwners: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second,
			},
			broken: "fences with two owners: 1",
		},
		"one fence began three times": {
			log: []string{
				"1000 7 begin accepted 1 0", "1001 7 end accepted 1 0", "2000 7 begin accepted 1 0", "2001 7 end accepted 1 0",
				"3000 7 begin accepted 1 0",
			},
			want:   FaultFigures{Grants: 3, BegunTwice: 1, LongestGap: time.Second, LongestGapUp: time.Second},
			broken: "fences begun twice: 1",
		},
		"the key was idle for too long": {
			log: []string{"10 7 begin accepted 1 0", "11 7 end accepted 1 0", "3011 8 begin accepted 1 0"},
			want: FaultFigures{
				Grants: 2, LongestGap: 3001 * time.Millisecond, LongestGapUp: 3001 * time.Millisecond, GapUpAt: 10 * time.Millisecond,
			},
			broken: "nobody got the key for 3.001s",
		},
		"refused begins do not fill a gap": {
			log: []string{"10 7 begin accepted 1 0", "2000 6 begin refused 1 1", "3500 8 begin accepted 1 0"},
			want: FaultFigures{
				Grants: 3, Refused: 1, Takeovers: 1,
				LongestGap: 3490 * time.Millisecond, LongestGapUp: 3490 * time.Millisecond, GapUpAt: 10 * time.Millisecond,
			},
			broken: "nobody got the key for 3.49s",
		},
		"nobody got it after the middle of the run": {
			log:    []string{"500 7 begin accepted 1 0"},
			want:   FaultFigures{Grants: 1, LongestGap: 3500 * time.Millisecond, LongestGapUp: 3500 * time.Millisecond, GapUpAt: 500 * time.Millisecond},
			broken: "nobody got the key for 3.5s",
		},
		"nobody ever got it": {
			want:   FaultFigures{LongestGap: 4 * time.Second, LongestGapUp: 4 * time.Second},
			broken: "nobody got the key for 4s",
		},
		"the time without Redis is not the lock's": {
			log:  []string{"100 7 begin accepted 1 0", "3600 8 begin accepted 1 0"},
			down: []rig.Span{{From: ms(50), To: ms(400)}, {From: ms(1000), To: ms(1500)}, {From: ms(3900), To: ms(4300)}},
			want: FaultFigures{
				Grants: 2, Takeovers: 1, Down: 950 * time.Millisecond,
				LongestGap: 3500 * time.Millisecond, LongestGapUp: 2700 * time.Millisecond, GapUpAt: 100 * time.Millisecond,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := faultRun{Span: rig.Span{To: ms(4000)}, Lease: 2 * time.Second, Log: writes(t, tc.log...), Down: tc.down}
			tc.want.MayGap = limit
			tc.want.GrantsPerSecond = float64(tc.want.Grants) / 4
			got := judgeFaults(run)
			if got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
			switch err := got.Err(); {
			case tc.broken == "" && err != nil:
				t.Errorf("it says %v; want nothing broken", err)
			case tc.broken != "" && (err == nil || !strings.Contains(err.Error(), tc.broken)):
				t.Errorf("it says %v; want %q", err, tc.broken)
			}
		})
	}
}

func TestErrNamesEveryBrokenPromise(t *testing.T) {
	err := FaultFigures{Inversions: 1, TwoOwners: 2, BegunTwice: 3, LongestGapUp: 4, MayGap: 3}.Err()
	if err == nil || len(strings.Split(err.Error(), "\n")) != 4 {
		t.Errorf("got %v; want four lines", err)
	}
}

func TestWriteIsALineOfFixedLength(t *testing.T) {
	for _, want := range []write{
		{At: 1, Fence: 2, PID: 3},
		{At: 123456789012345678, Fence: 1<<52 + 1, End: true, Refused: true, PID: 4194304, Goroutine: 12},
	} {
		line := want.line()
		if len(line) != writeSize || !strings.HasSuffix(line, "\n") {
			t.Errorf("%q has %d bytes; want a line of %d", line, len(line), writeSize)
		}
		if got, err := parseWrite(line); err != nil || got != want {
			t.Errorf("%q is %+v (%v); want %+v", line, got, err, want)
		}
	}
	for name, line := range map[string]string{
		"empty":       "",
		"torn":        "1 2 begin acc",
		"two":         "1 2 begin accepted 3 4 1 2 end accepted 3 4",
		"no fence":    "1 -2 begin accepted 3 4",
		"no act":      "1 2 middle accepted 3 4",
		"no outcome":  "1 2 end perhaps 3 4",
		"unknown pid": "1 2 end accepted x 4",
	} {
		if w, err := parseWrite(line); err == nil {
			t.Errorf("%s: %q is %+v; want an error", name, line, w)
		}
	}
}

func TestVolumeRefusesAFenceBelowAnEarlierOne(t *testing.T) {
	v := volume{t.TempDir()}
	for _, w := range []struct {
		fence uint64
		end   bool
	}{{7, false}, {9, false}, {7, true}, {9, true}, {8, false}, {10, false}} {
		if err := v.write(w.fence, w.end, 3); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, w := range proctest.Must(v.readLog())(t) {
		if w.At <= 0 || w.PID != os.Getpid() || w.Goroutine != 3 {
			t.Errorf("%+v; want a moment, and who it was", w)
		}
		got = append(got, fmt.Sprint(w.Fence, w.End, w.Refused))
	}
	want := []string{"7 false false", "9 false false", "7 true true", "9 true false", "8 false true", "10 false false"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if highest := proctest.Must(v.highest())(t); highest != 10 {
		t.Errorf("highest is %d; want 10", highest)
	}
}
