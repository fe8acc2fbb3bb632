package availability

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/proctest"
)

func TestReadsAreJudgedByWhatTheyMet(t *testing.T) {
	whole := treeRead{Versions: []int{1}}
	for name, tc := range map[string]struct {
		reads   []treeRead
		want    Figures
		percent string
		sound   bool
	}{
		"none":           {nil, Figures{}, "–", false},
		"whole":          {[]treeRead{whole, {Versions: []int{2}}}, Figures{Reads: 2, Whole: 2, Versions: 2}, "100.000", true},
		"nothing new":    {[]treeRead{whole, whole}, Figures{Reads: 2, Whole: 2, Versions: 1}, "100.000", false},
		"missing":        {[]treeRead{whole, {Missing: 3, Versions: []int{2}}}, Figures{Reads: 2, Whole: 1, Missing: 3, Versions: 1}, "50.000", false},
		"nothing at all": {[]treeRead{{Missing: 9}}, Figures{Reads: 1, Missing: 9}, "0.000", false},
		"torn":           {[]treeRead{{Torn: 1, Versions: []int{2}}}, Figures{Reads: 1, Torn: 1}, "0.000", false},
		"mixed":          {[]treeRead{whole, whole, {Versions: []int{2, 1}}}, Figures{Reads: 3, Whole: 2, Mixed: 1, Versions: 1}, "66.666", false},
		"one in a million": {
			append(slices.Repeat([]treeRead{whole, {Versions: []int{2}}}, 500_000), treeRead{Missing: 1}),
			Figures{Reads: 1_000_001, Whole: 1_000_000, Missing: 1, Versions: 2}, "99.999", false,
		},
	} {
		got := countReads(tc.reads)
		if got != tc.want || got.percent() != tc.percent || (got.Err() == nil) != tc.sound {
			t.Errorf("%s: %+v, %s, %v; want %+v, %s", name, got, got.percent(), got.Err(), tc.want, tc.percent)
		}
	}
}

func TestPlotOfReadsOverTime(t *testing.T) {
	reads := []treeRead{
		{At: 0, Versions: []int{1}}, {At: 9, Missing: 1}, // half of the first stretch
		{At: 25, Versions: []int{2}}, {At: 40, Versions: []int{2}}, // all of the third, and the last, at its end
	}
	points := overTime(reads, 40, 4)
	if want := []Point{{10, 0.5}, {30, 1}, {40, 1}}; !slices.Equal(points, want) {
		t.Errorf("got %v, want %v", points, want)
	}
	var svg strings.Builder
	plot := plot{Title: "a < b", Run: 40 * time.Nanosecond, Lines: []line{{"one & only", points}, {"none", nil}}}
	if err := plot.writeSVG(&svg); err != nil {
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

func TestReaderFindsFaultsOfATree(t *testing.T) {
	r := &turn{bench: &bench{files: 12}}
	write := func(t *testing.T, dir string, files map[string]string) {
		for path, content := range files {
			path = filepath.Join(dir, path)
			proctest.Must(0, os.MkdirAll(filepath.Dir(path), 0o700))(t)
			proctest.Must(0, os.WriteFile(path, []byte(content), 0o600))(t)
		}
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   treeRead
	}{
		"nothing": {func(*testing.T, string) {}, treeRead{Versions: []int{7}}},
		"a file is missing": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Remove(filepath.Join(dir, r.path(3))))(t) },
			treeRead{Missing: 1, Versions: []int{7}},
		},
		"a file is empty": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Truncate(filepath.Join(dir, r.path(11)), 0))(t) },
			treeRead{Torn: 1, Versions: []int{7}},
		},
		"a file lacks its end": {
			func(t *testing.T, dir string) { proctest.Must(0, os.Truncate(filepath.Join(dir, r.path(11)), 50))(t) },
			treeRead{Torn: 1, Versions: []int{7}},
		},
		"a file is of another version": {
			func(t *testing.T, dir string) {
				write(t, dir, map[string]string{r.path(5): r.version(8)[r.path(5)]})
			},
			treeRead{Versions: []int{7, 8}},
		},
		"there is no tree": {func(t *testing.T, dir string) { proctest.Must(0, os.RemoveAll(dir))(t) }, treeRead{Missing: 12}},
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		write(t, dir, r.version(7))
		tc.change(t, dir)
		if got, err := r.readOnce(dir); err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
}
