package dashboard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
)

const (
	historyShown   = 50       // results of a repository
	historyScanned = 20_000   // results read for the first view of a repository
	historyRead    = 16 << 20 // approximate bytes of them
	historiesKept  = 128      // repositories
)

// histories reads the newest results of single repositories from streams of results, which have no index by
// repository. It caches the results of some repositories. It is safe for concurrent use.
type histories struct {
	reader *stream.Reader

	mu    sync.Mutex
	known map[string]history // by stream and repository key
}

func newHistories(client redis.UniversalClient) *histories {
	return &histories{reader: stream.NewReader(client), known: map[string]history{}}
}

// history is the newest results of a repository.
type history struct {
	results []settled // newest first, at most historyShown
	upto    string    // newest entry read
	since   time.Time // older results are unknown; zero if the whole stream was read
}

// of returns the history of a repository with a stream of results.
func (h *histories) of(ctx context.Context, topic string, repo events.RepoPath) (history, error) {
	key := topic + " " + repo.Key()
	h.mu.Lock()
	was := h.known[key]
	h.mu.Unlock()
	now, err := h.read(ctx, topic, repo, was)
	if err != nil {
		return history{}, fmt.Errorf("read the results of %s: %w", repo, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, seen := h.known[key]; !seen && len(h.known) >= historiesKept {
		for other := range h.known { // any one: it can be read again
			delete(h.known, other)
			break
		}
	}
	h.known[key] = now
	return now, nil
}

// read adds the results after was.upto, newest first, until there are enough or too many have been read.
func (h *histories) read(ctx context.Context, topic string, repo events.RepoPath, was history) (history, error) {
	now, stop := history{upto: was.upto, since: was.since}, "-"
	if was.upto != "" {
		stop = "(" + was.upto
	}
	scanned, bytes := 0, 0
	for e, err := range h.reader.Backward(ctx, topic, "+", stop) {
		if err != nil {
			return history{}, err
		}
		if scanned == 0 {
			now.upto = e.ID
		}
		if r, ok := changes.ResultOf(e, repo); ok && r.Repo.Equal(repo) {
			if s, ok := settledOf(e.ID, r); ok {
				now.results = append(now.results, s)
			}
		}
		scanned, bytes = scanned+1, bytes+stream.Size(e)
		if len(now.results) >= historyShown {
			break
		}
		if scanned >= historyScanned || bytes >= historyRead {
			now.since, was.results = events.EntryTime(e.ID), nil // what was known before leaves a gap: drop it
			break
		}
	}
	now.results, _ = first(historyShown, append(now.results, was.results...))
	return now, nil
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
