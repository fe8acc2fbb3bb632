package hot

import (
	"fmt"
	"io"
	"strconv"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// caseReport is the outcome of a case.
type caseReport struct {
	Case     string   `json:"case"`
	Setup    string   `json:"setup"`
	Calm     *Latency `json:"calm,omitempty"`   // without the obstacle
	Loaded   *Latency `json:"loaded,omitempty"` // with it
	RatioP50 float64  `json:"ratio_p50,omitempty"`
	RatioP99 float64  `json:"ratio_p99,omitempty"`
	Figures  []Figure `json:"figures"`
}

// Latency is how long changes took from the stream to their result, by Redis' clock. A change without a result counts
// with the time that it had waited at the end.
type Latency struct {
	stats.Latency
	Changes int `json:"changes"`
	Pending int `json:"pending"` // without a result at the end
	Failed  int `json:"failed"`  // with a result other than synced
}

// Figure is one measured number.
type Figure struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	AtMost *float64 `json:"at_most,omitempty"` // target
}

func newCaseReport(name, setup string, args ...any) *caseReport {
	return &caseReport{Case: name, Setup: fmt.Sprintf(setup, args...)}
}

// compare adds the latencies of changes without and with the obstacle.
func (r *caseReport) compare(calm, loaded Latency) {
	r.Calm, r.Loaded = &calm, &loaded
	r.RatioP50, r.RatioP99 = stats.Ratio(loaded.P50, calm.P50), stats.Ratio(loaded.P99, calm.P99)
}

func (r *caseReport) add(name string, value float64) {
	r.Figures = append(r.Figures, Figure{Name: name, Value: value})
}

// addWithin adds a figure with a target.
func (r *caseReport) addWithin(atMost float64, name string, value float64) {
	r.Figures = append(r.Figures, Figure{name, value, &atMost})
}

// Table prints the report as text.
func (r *caseReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n\n", r.Case, r.Setup)
	if r.Calm != nil {
		table := rig.NewTable(w)
		fmt.Fprintln(table, "\tp50, ms\tp99, ms\tmax, ms\tchanges\tpending\tfailed\t")
		for _, row := range []struct {
			name string
			*Latency
		}{{"calm", r.Calm}, {"loaded", r.Loaded}} {
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", row.name,
				row.P50.Milliseconds(), row.P99.Milliseconds(), row.Max.Milliseconds(), row.Changes, row.Pending, row.Failed)
		}
		fmt.Fprintf(table, "ratio\t%.2f\t%.2f\t\t\t\t\t\n", r.RatioP50, r.RatioP99)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	list := rig.NewList(w)
	for _, f := range r.Figures {
		fmt.Fprintf(list, "%s\t%s\t%s\n", f.Name, number(f.Value), f.target())
	}
	return list.Flush()
}

func (f Figure) target() string {
	switch {
	case f.AtMost == nil:
		return ""
	case f.Value > *f.AtMost:
		return "target " + number(*f.AtMost) + ": missed"
	}
	return "target " + number(*f.AtMost)
}

// number formats a number with three decimals at most.
func number(value float64) string {
	return strconv.FormatFloat(float64(int64(value*1000+0.5))/1000, 'f', -1, 64)
}
