package availability

import (
	"fmt"
	"math"
)

// treeRead is one read of a whole tree: all its files, one after the other.
type treeRead struct {
	Missing  int   // files that were not there
	Torn     int   // incomplete files
	Versions []int // distinct versions in complete files, in the order read
}

// isWhole reports whether the read found a complete tree of one version.
func (r treeRead) isWhole() bool { return r.Missing == 0 && r.Torn == 0 && len(r.Versions) == 1 }

// Figures counts the reads of a run by outcome.
type Figures struct {
	Reads    int `json:"reads"`
	Whole    int `json:"whole"`    // reads of a complete tree of one version
	Missing  int `json:"missing"`  // missing files, in all reads
	Torn     int `json:"torn"`     // torn files, in all reads
	Mixed    int `json:"mixed"`    // reads of several versions
	Versions int `json:"versions"` // distinct versions in complete reads
}

// countReads counts what the reads found.
func countReads(reads []treeRead) Figures {
	a := Figures{Reads: len(reads)}
	versions := map[int]bool{}
	for _, r := range reads {
		a.Missing += r.Missing
		a.Torn += r.Torn
		if len(r.Versions) > 1 {
			a.Mixed++
		}
		if r.isWhole() {
			a.Whole++
			versions[r.Versions[0]] = true
		}
	}
	a.Versions = len(versions)
	return a
}

// percent is the share of whole reads, rounded down, so 100.000 means all of them. It is "–" if there are no reads.
func (a Figures) percent() string {
	if a.Reads == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3f", math.Floor(1e5*float64(a.Whole)/float64(a.Reads))/1e3)
}

// Err returns an error unless each read found a complete tree of one version, and the versions changed.
func (a Figures) Err() error {
	switch {
	case a.Whole < a.Reads:
		return fmt.Errorf("%d of %d reads were not of one complete version: %d files missing, %d torn, %d reads of mixed versions",
			a.Reads-a.Whole, a.Reads, a.Missing, a.Torn, a.Mixed)
	case a.Versions < 2:
		return fmt.Errorf("%d reads found %d versions; want at least 2, or nothing was measured", a.Reads, a.Versions)
	}
	return nil
}
