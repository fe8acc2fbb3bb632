package dashboard

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
)

const (
	historyShown   = 50       // results of a repository
	historyScanned = 20_000   // results read for them
	historyRead    = 16 << 20 // approximate bytes of them
)

// histories reads the newest results of single repositories from streams of results, which have no index by
// repository.
type histories struct{ reader *stream.Reader }

// history is the newest results of a repository.
type history struct {
	results []settled // newest first, at most historyShown
	since   time.Time // older results are unknown; zero if the whole stream was read
}

// of returns the history of a repository with a stream of results.
func (h histories) of(ctx context.Context, topic string, repo events.RepoPath) (found history, err error) {
	scanned, bytes := 0, 0
	for e, err := range h.reader.Backward(ctx, topic, "+", "-") {
		if err != nil {
			return history{}, fmt.Errorf("read the results of %s: %w", repo, err)
		}
		if r, ok := changes.ResultOf(e, repo); ok && r.Repo.Equal(repo) {
			if s, ok := settledOf(e.ID, r); ok {
				found.results = append(found.results, s)
			}
		}
		scanned, bytes = scanned+1, bytes+stream.Size(e)
		switch {
		case len(found.results) == historyShown:
			return found, nil
		case scanned == historyScanned || bytes >= historyRead:
			found.since = events.EntryTime(e.ID)
			return found, nil
		}
	}
	return found, nil
}

// tree returns the tree of the newest result that published a commit of a ref, or "".
func (h history) tree(ref, commit string) string {
	i := slices.IndexFunc(h.results, func(s settled) bool {
		return s.kind != outFailed && s.Ref == ref && s.After == commit && s.Tree != ""
	})
	if i < 0 {
		return ""
	}
	return h.results[i].Tree
}

// bar is a result in the chart of a repository. Its height is the logarithm of its latency.
type bar struct {
	X, Y, Height int
	Outcome      string
	Title        string
}

const (
	barWidth  = 12
	barsHigh  = 60
	barsInset = 2
)

// bars returns the chart of results, oldest first.
func (h history) bars() (bars []bar) {
	for i, s := range slices.Backward(h.results) {
		latency := "latency unknown"
		height := barsInset
		if s.Delayed {
			height = max(barsInset, barsHigh*bin(s.Delay)/bins)
			latency = formatDuration(s.Delay)
		}
		bars = append(bars, bar{
			X: (len(h.results) - 1 - i) * barWidth, Y: barsHigh - height, Height: height, Outcome: s.Outcome,
			Title: s.At.UTC().Format("2006-01-02 15:04:05") + " UTC: " + s.Outcome + ", " + latency,
		})
	}
	return bars
}

// ViewBox returns the size of the chart.
func (p repoPage) ViewBox() template.HTMLAttr {
	return template.HTMLAttr(fmt.Sprintf(`viewBox="0 0 %d %d"`, max(1, historyShown*barWidth), barsHigh))
}
