package pressure_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"lockstep/internal/pressure"
)

// limit is a controller with a reading to be set, and its limit.
type limit struct {
	pressure.Controller
	reading pressure.Reading
	err     error
	size    int
	log     bytes.Buffer
}

func newLimit(least, most int) *limit {
	l := &limit{size: most}
	l.Controller = pressure.Controller{
		Min: least, Max: most, Read: func() (pressure.Reading, error) { return l.reading, l.err }, Resize: func(n int) { l.size = n },
		Log: slog.New(slog.NewTextHandler(&l.log, nil)),
	}
	return l
}

// steps returns the limit after each of n steps with a reading.
func (l *limit) steps(n int, r pressure.Reading) []int {
	l.reading = r
	var sizes []int
	for range n {
		l.Step(context.Background())
		sizes = append(sizes, l.size)
	}
	return sizes
}

var (
	calm     = pressure.Reading{Memory: 0.5, MemoryStall: 0.01, CPUStall: 0.3}
	between  = pressure.Reading{Memory: 0.8, MemoryStall: 0.05, CPUStall: 0.7}
	full     = pressure.Reading{Memory: 0.95}
	thrashes = pressure.Reading{Memory: 0.5, MemoryStall: 0.2}
	crowded  = pressure.Reading{CPUStall: 0.97}
)

func TestLimitFollowsPressure(t *testing.T) {
	type phase struct {
		reading pressure.Reading
		want    []int
	}
	for name, phases := range map[string][]phase{
		"calm":                           {{calm, []int{16, 16, 16}}},
		"memory is full, and free again": {{full, []int{12, 9, 6, 4, 4}}, {calm, []int{4, 4, 5, 6, 7}}},
		"the stalls of before a decrease still count": {{thrashes, []int{12, 12, 12, 9}}, {between, []int{9, 9, 9, 9}}},
		"processors are crowded":                      {{crowded, []int{12, 12, 12, 9, 9, 9, 6, 6, 6, 4, 4, 4, 4}}},
		"between":                                     {{between, []int{16, 16}}, {full, []int{12}}, {between, []int{12, 12, 12, 12}}},
		"memory fills up after a stall":               {{thrashes, []int{12}}, {full, []int{9, 6}}},
		"grows to the maximum":                        {{full, []int{12}}, {calm, []int{12, 12, 13, 14, 15, 16, 16}}},
		"unknown":                                     {{pressure.Reading{}, []int{16}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimit(4, 16)
			for _, p := range phases {
				if got := l.steps(len(p.want), p.reading); !slices.Equal(got, p.want) {
					t.Errorf("%+v: %v, want %v", p.reading, got, p.want)
				}
			}
		})
	}
}

func TestAllSlotsWithoutReadings(t *testing.T) {
	l := newLimit(4, 16)
	l.steps(3, full)
	l.err = errors.New("no such file")
	if got := l.steps(3, pressure.Reading{}); !slices.Equal(got, []int{16, 16, 16}) {
		t.Errorf("%v, want all", got)
	}
	if n := strings.Count(l.log.String(), "not readable"); n != 1 {
		t.Errorf("%d warnings, want one:\n%s", n, &l.log)
	}
	l.err = nil
	if got := l.steps(1, full); got[0] != 12 {
		t.Errorf("%v, want a smaller limit once there are readings again", got)
	}
}

// Whatever is read, the limit is between the minimum and the maximum, and moves down by a quarter or by one at most, up by one.
func TestLimitStaysBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(1, 64).Draw(t, "least")
		most := rapid.IntRange(least, 4096).Draw(t, "most")
		share := rapid.Float64Range(0, 2)
		l := newLimit(least, most)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			before := l.size
			l.steps(1, pressure.Reading{Memory: share.Draw(t, "memory"), MemoryStall: share.Draw(t, "stall"), CPUStall: share.Draw(t, "cpu")})
			if l.size < least || l.size > most || l.size > before+1 || l.size < min(before*3/4, before-1) {
				t.Fatalf("%d after %d, between %d and %d", l.size, before, least, most)
			}
		}
	})
}

func TestRunReadsEvery5Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimit(1, 8)
		reads := 0
		l.Read = func() (pressure.Reading, error) { reads++; return full, nil }
		ctx, cancel := context.WithTimeout(t.Context(), 21*time.Second)
		defer cancel()
		l.Run(ctx)
		if reads != 5 || l.size != 1 {
			t.Errorf("%d readings, limit %d; want 5 and 1", reads, l.size)
		}
	})
}
