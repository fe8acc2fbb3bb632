package availability

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadsAreJudgedByWhatTheyMet(t *testing.T) {
	whole := TreeRead{Versions: []int{1}}
	for name, tc := range map[string]struct {
		reads   []TreeRead
		want    Availability
		percent string
		sound   bool
	}{
		"none":           {nil, Availability{}, "–", false},
		"whole":          {[]TreeRead{whole, {Versions: []int{2}}}, Availability{Reads: 2, Whole: 2, Versions: 2}, "100.000", true},
		"nothing new":    {[]TreeRead{whole, whole}, Availability{Reads: 2, Whole: 2, Versions: 1}, "100.000", false},
		"missing":        {[]TreeRead{whole, {Missing: 3, Versions: []int{2}}}, Availability{Reads: 2, Whole: 1, Missing: 3, Versions: 1}, "50.000", false},
		"nothing at all": {[]TreeRead{{Missing: 9}}, Availability{Reads: 1, Missing: 9}, "0.000", false},
		"torn":           {[]TreeRead{{Torn: 1, Versions: []int{2}}}, Availability{Reads: 1, Torn: 1}, "0.000", false},
		"mixed":          {[]TreeRead{whole, whole, {Versions: []int{2, 1}}}, Availability{Reads: 3, Whole: 2, Mixed: 1, Versions: 1}, "66.666", false},
		"one in a million": {
			append(slices.Repeat([]TreeRead{whole, {Versions: []int{2}}}, 500_000), TreeRead{Missing: 1}),
			Availability{Reads: 1_000_001, Whole: 1_000_000, Missing: 1, Versions: 2}, "99.999", false,
		},
	} {
		got := JudgeReads(tc.reads)
		if got != tc.want || got.Percent() != tc.percent || (got.Err() == nil) != tc.sound {
			t.Errorf("%s: %+v, %s, %v; want %+v, %s", name, got, got.Percent(), got.Err(), tc.want, tc.percent)
		}
	}
}

func TestReadsOverTimeAreDrawn(t *testing.T) {
	reads := []TreeRead{
		{At: 0, Versions: []int{1}}, {At: 9, Missing: 1}, // half of the first stretch
		{At: 25, Versions: []int{2}}, {At: 40, Versions: []int{2}}, // all of the third, and the last, at its end
	}
	points := ReadsOverTime(reads, 40, 4)
	if want := []ReadPoint{{10, 0.5}, {30, 1}, {40, 1}}; !slices.Equal(points, want) {
		t.Errorf("got %v, want %v", points, want)
	}
	var svg strings.Builder
	plot := Plot{Title: "a < b", Run: 40 * time.Nanosecond, Lines: []Line{{"one & only", points}, {"none", nil}}}
	if err := plot.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`points="210.0,170.0 510.0,50.0 660.0,50.0"`, "a &lt; b", "one &amp; only"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("the drawing has no %s:\n%s", want, svg.String())
		}
	}
	for parser := xml.NewDecoder(strings.NewReader(svg.String())); ; {
		_, err := parser.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg.String())
		}
	}
}
