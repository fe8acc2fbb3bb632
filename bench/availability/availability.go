package availability

import (
	"fmt"
	"math"
	"time"
)

// TreeRead is one read of a whole tree: all its files, one after the other.
type TreeRead struct {
	At       time.Duration // since the start of the run, when it began
	Missing  int           // files that were not there
	Torn     int           // files that were there in part
	Versions []int         // the different versions that whole files named, in the order met
}

// IsWhole reports whether the read met a complete tree of one version.
func (r TreeRead) IsWhole() bool { return r.Missing == 0 && r.Torn == 0 && len(r.Versions) == 1 }

// Availability is what readers met during a run.
type Availability struct {
	Reads    int `json:"reads"`
	Whole    int `json:"whole"`    // reads of a complete tree of one version
	Missing  int `json:"missing"`  // files, in all reads together
	Torn     int `json:"torn"`     // likewise
	Mixed    int `json:"mixed"`    // reads that met several versions
	Versions int `json:"versions"` // different ones that whole reads met
}

// JudgeReads counts what the reads have met.
func JudgeReads(reads []TreeRead) Availability {
	a := Availability{Reads: len(reads)}
	versions := map[int]bool{}
	for _, r := range reads {
		a.Missing += r.Missing
		a.Torn += r.Torn
		if len(r.Versions) > 1 {
			a.Mixed++
		}
		if r.IsWhole() {
			a.Whole++
			versions[r.Versions[0]] = true
		}
	}
	a.Versions = len(versions)
	return a
}

// Percent is the share of whole reads, rounded down: 100.000 means all of them. Of no reads it is "–".
func (a Availability) Percent() string {
	if a.Reads == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3f", math.Floor(1e5*float64(a.Whole)/float64(a.Reads))/1e3)
}

// Err says what kept readers from what they were promised: a complete tree of one version, each time,
// and a newer one as time goes on.
func (a Availability) Err() error {
	switch {
	case a.Whole < a.Reads:
		return fmt.Errorf("%d of %d reads were not of one complete version: %d files missing, %d torn, %d reads of mixed versions",
			a.Reads-a.Whole, a.Reads, a.Missing, a.Torn, a.Mixed)
	case a.Versions < 2:
		return fmt.Errorf("%d reads met %d versions; want one after the other, or nothing was measured", a.Reads, a.Versions)
	}
	return nil
}

// ReadPoint is the share of whole reads in one stretch of time, up to To.
type ReadPoint struct {
	To    time.Duration `json:"to_ns"`
	Share float64       `json:"share"`
}

// ReadsOverTime cuts a run into stretches. Those in which no read began are left out.
func ReadsOverTime(reads []TreeRead, run time.Duration, stretches int) []ReadPoint {
	whole, all := make([]int, stretches), make([]int, stretches)
	for _, r := range reads {
		i := min(int(int64(r.At)*int64(stretches)/int64(run)), stretches-1)
		all[i]++
		if r.IsWhole() {
			whole[i]++
		}
	}
	var points []ReadPoint
	for i, n := range all {
		if n > 0 {
			points = append(points, ReadPoint{run * time.Duration(i+1) / time.Duration(stretches), float64(whole[i]) / float64(n)})
		}
	}
	return points
}
