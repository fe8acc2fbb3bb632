package dashboard

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const (
	historyShown   = 50       // results of a repository
	historyScanned = 20_000   // results read for the first view of a repository
	historyRead    = 16 << 20 // approximate bytes of them
	historiesKept  = 128      // repositories
)

// histories reads the newest results of single repositories from the stream of results, which has
// no index by repository. It caches the results of the repositories shown most recently. It is safe
// for concurrent use.
type histories struct {
	redis redis.UniversalClient
	topic string

	mu    sync.Mutex
	known map[string]*history // by repository key
}

// history is the newest results of a repository.
type history struct {
	results []settled // newest first, at most historyShown
	upto    string    // newest entry read
	since   time.Time // older results are unknown; zero if the whole stream was read
	used    time.Time
}

// of returns the history of a repository.
func (h *histories) of(ctx context.Context, repo events.RepoPath) (history, error) {
	h.mu.Lock()
	last, seen := h.known[repo.Key()]
	var was history
	if seen {
		was = *last
	}
	h.mu.Unlock()
	now, err := h.read(ctx, repo, was)
	if err != nil {
		return history{}, fmt.Errorf("read the results of %s: %w", repo, err)
	}
	now.used = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = map[string]*history{}
	}
	if len(h.known) >= historiesKept && !seen {
		h.dropOldest()
	}
	h.known[repo.Key()] = &now
	return now, nil
}

func (h *histories) dropOldest() {
	oldest := ""
	for key, one := range h.known {
		if oldest == "" || one.used.Before(h.known[oldest].used) {
			oldest = key
		}
	}
	delete(h.known, oldest)
}

// read adds the results after was.upto, newest first, until there are enough or too many have been read.
func (h *histories) read(ctx context.Context, repo events.RepoPath, was history) (history, error) {
	const batch = 500
	now := history{upto: was.upto, since: was.since}
	to, stop := "+", "-"
	if was.upto != "" {
		stop = "(" + was.upto
	}
	for scanned, bytes := 0, 0; ; {
		entries, err := h.redis.XRevRangeN(ctx, h.topic, to, stop, batch).Result()
		if err != nil {
			return history{}, err
		}
		if scanned == 0 && len(entries) > 0 {
			now.upto = entries[0].ID
		}
		for _, e := range entries {
			bytes += entrySize(e)
			if s, ok := resultOf(e, repo); ok {
				now.results = append(now.results, s)
			}
		}
		scanned += len(entries)
		if len(now.results) >= historyShown || len(entries) < batch {
			break
		}
		oldest := entries[len(entries)-1].ID
		// what was known before leaves a gap: drop it
		if to = "(" + oldest; scanned >= historyScanned || bytes >= historyRead {
			now.since, was.results = events.EntryTime(oldest), nil
			break
		}
	}
	now.results, _ = first(historyShown, append(now.results, was.results...))
	return now, nil
}

// resultOf parses an entry if it is a result of the repository. The text is searched first, because parsing costs more.
func resultOf(e redis.XMessage, repo events.RepoPath) (settled, bool) {
	payload, _ := e.Values["payload"].(string)
	name := repo.String()
	if !strings.Contains(payload, name) && !strings.Contains(strings.ToLower(payload), repo.Key()) {
		return settled{}, false
	}
	s, ok := parseSettled(e)
	return s, ok && strings.EqualFold(s.Repo, name)
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
