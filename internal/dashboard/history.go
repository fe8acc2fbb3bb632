package dashboard

import (
	"context"
	"fmt"
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
