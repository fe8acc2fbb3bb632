package lock_test

import (
	"strings"
	"testing"
	"time"

	"lockstep/bench/lock"
	"lockstep/bench/rig"
)

// writes reads lines of "<at, ms> <fence> begin|end accepted|refused <pid> <goroutine>".
func writes(t *testing.T, lines ...string) []lock.Write {
	t.Helper()
	var all []lock.Write
	for _, line := range lines {
		w, err := lock.ParseWrite(line)
		if err != nil {
			t.Fatal(err)
		}
		w.At *= time.Millisecond.Nanoseconds()
		all = append(all, w)
	}
	return all
}

func ms(n int64) int64 { return n * time.Millisecond.Nanoseconds() }

func TestFaultsAreJudgedByTheLog(t *testing.T) {
	const limit = 3 * time.Second // a lease of 2 s, and the slack
	for name, tc := range map[string]struct {
		log    []string
		down   []rig.Span
		want   lock.FaultFigures
		broken string // in the error
	}{
		"taking turns": {
			log: []string{
				"0 7 begin accepted 1 0", "1000 7 end accepted 1 0", "2000 8 begin accepted 1 1", "2500 8 end accepted 1 1",
				"3000 9 begin accepted 2 0", "4000 9 end accepted 2 0",
			},
			want: lock.FaultFigures{Grants: 3, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second},
		},
		"a stopped holder is overtaken and refused": {
			log: []string{
				"100 7 begin accepted 1 0", "2200 8 begin accepted 2 0", "2300 8 end accepted 2 0",
				"2800 7 end refused 1 0", "2900 6 begin refused 1 1",
			},
			want: lock.FaultFigures{
				Grants: 3, Takeovers: 1, Refused: 2,
				LongestGap: 2100 * time.Millisecond, LongestGapUp: 2100 * time.Millisecond, GapUpAt: 100 * time.Millisecond,
			},
		},
		"what was refused after the run still counts": {
			log:  []string{"2000 8 begin accepted 1 0", "2001 8 end accepted 1 0", "4500 7 end refused 2 0", "4600 9 begin accepted 1 0"},
			want: lock.FaultFigures{Grants: 1, Refused: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second},
		},
		"an end below an accepted begin was accepted": {
			log: []string{"1000 7 begin accepted 1 0", "2000 8 begin accepted 2 0", "2100 7 end accepted 1 0"},
			want: lock.FaultFigures{
				Grants: 2, Takeovers: 1, Inversions: 1,
				LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second, GapUpAt: 2 * time.Second,
			},
			broken: "accepted fence inversions: 1",
		},
		"a begin below an accepted one was accepted": {
			log: []string{"1000 8 begin accepted 1 0", "1100 8 end accepted 1 0", "2000 7 begin accepted 2 0", "2001 7 end accepted 2 0"},
			want: lock.FaultFigures{
				Grants: 2, Inversions: 2,
				LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second, GapUpAt: 2 * time.Second,
			},
			broken: "accepted fence inversions: 2",
		},
		"two processes had one fence": {
			log: []string{"2000 7 begin accepted 1 0", "2100 7 end accepted 2 0", "2200 7 end accepted 1 0"},
			want: lock.FaultFigures{
				Grants: 1, TwoOwners: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second,
			},
			broken: "fences with two owners: 1",
		},
		"two goroutines had one fence, though both were refused": {
			log: []string{"2000 9 begin accepted 1 0", "2001 9 end accepted 1 0", "2100 7 end refused 2 0", "2200 7 end refused 2 1"},
			want: lock.FaultFigures{
				Grants: 1, Refused: 2, TwoOwners: 1, LongestGap: 2 * time.Second, LongestGapUp: 2 * time.Second,
			},
			broken: "fences with two owners: 1",
		},
		"one fence began three times": {
			log: []string{
				"1000 7 begin accepted 1 0", "1001 7 end accepted 1 0", "2000 7 begin accepted 1 0", "2001 7 end accepted 1 0",
				"3000 7 begin accepted 1 0",
			},
			want:   lock.FaultFigures{Grants: 3, BegunTwice: 1, LongestGap: time.Second, LongestGapUp: time.Second},
			broken: "fences begun twice: 1",
		},
		"the key was idle for too long": {
			log: []string{"10 7 begin accepted 1 0", "11 7 end accepted 1 0", "3011 8 begin accepted 1 0"},
			want: lock.FaultFigures{
				Grants: 2, LongestGap: 3001 * time.Millisecond, LongestGapUp: 3001 * time.Millisecond, GapUpAt: 10 * time.Millisecond,
			},
			broken: "nobody got the key for 3.001s",
		},
		"refused begins do not fill a gap": {
			log: []string{"10 7 begin accepted 1 0", "2000 6 begin refused 1 1", "3500 8 begin accepted 1 0"},
			want: lock.FaultFigures{
				Grants: 3, Refused: 1, Takeovers: 1,
				LongestGap: 3490 * time.Millisecond, LongestGapUp: 3490 * time.Millisecond, GapUpAt: 10 * time.Millisecond,
			},
			broken: "nobody got the key for 3.49s",
		},
		"nobody got it after the middle of the run": {
			log:    []string{"500 7 begin accepted 1 0"},
			want:   lock.FaultFigures{Grants: 1, LongestGap: 3500 * time.Millisecond, LongestGapUp: 3500 * time.Millisecond, GapUpAt: 500 * time.Millisecond},
			broken: "nobody got the key for 3.5s",
		},
		"nobody ever got it": {
			want:   lock.FaultFigures{LongestGap: 4 * time.Second, LongestGapUp: 4 * time.Second},
			broken: "nobody got the key for 4s",
		},
		"the time without Redis is not the lock's": {
			log:  []string{"100 7 begin accepted 1 0", "3600 8 begin accepted 1 0"},
			down: []rig.Span{{From: ms(50), To: ms(400)}, {From: ms(1000), To: ms(1500)}, {From: ms(3900), To: ms(4300)}},
			want: lock.FaultFigures{
				Grants: 2, Takeovers: 1, Down: 950 * time.Millisecond,
				LongestGap: 3500 * time.Millisecond, LongestGapUp: 2700 * time.Millisecond, GapUpAt: 100 * time.Millisecond,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := lock.FaultRun{Span: rig.Span{To: ms(4000)}, Lease: 2 * time.Second, Log: writes(t, tc.log...), Down: tc.down}
			tc.want.MayGap = limit
			tc.want.GrantsPerSecond = float64(tc.want.Grants) / 4
			got := lock.JudgeFaults(run)
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

func TestEveryBrokenPromiseIsNamed(t *testing.T) {
	err := lock.FaultFigures{Inversions: 1, TwoOwners: 2, BegunTwice: 3, LongestGapUp: 4, MayGap: 3}.Err()
	if err == nil || len(strings.Split(err.Error(), "\n")) != 4 {
		t.Errorf("got %v; want four lines", err)
	}
}

func TestAWriteIsALineOfFixedLength(t *testing.T) {
	for _, want := range []lock.Write{
		{At: 1, Fence: 2, PID: 3},
		{At: 123456789012345678, Fence: 1<<52 + 1, End: true, Refused: true, PID: 4194304, Goroutine: 12},
	} {
		line := want.Line()
		if len(line) != lock.WriteSize || !strings.HasSuffix(line, "\n") {
			t.Errorf("%q has %d bytes; want a line of %d", line, len(line), lock.WriteSize)
		}
		if got, err := lock.ParseWrite(line); err != nil || got != want {
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
		if w, err := lock.ParseWrite(line); err == nil {
			t.Errorf("%s: %q is %+v; want an error", name, line, w)
		}
	}
}
