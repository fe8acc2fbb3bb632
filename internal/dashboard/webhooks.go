package dashboard

import (
	"context"
	"net/url"
	"strings"

	"lockstep/events"
	"lockstep/internal/intake"
)

// webhook is a received webhook as shown.
type webhook struct {
	intake.Received
	Verdict string // accepted, ignored or refused
}

// Badge returns the style of the verdict.
func (w webhook) Badge() string {
	return map[string]string{"accepted": "ok", "ignored": "plain", "refused": "bad"}[w.Verdict]
}

// HasPage reports whether there may be a page of the repository: its name is a path, and it is not unwatched.
func (w webhook) HasPage() bool {
	_, err := events.ParseRepoPath(w.Repo)
	return err == nil && !w.Unwatched
}

// verdictOf sums up an outcome.
func verdictOf(r intake.Received) string {
	switch {
	case !r.Verified || r.Outcome == "unavailable":
		return "refused"
	case r.Outcome == intake.Ignored:
		return "ignored"
	}
	return "accepted"
}

type webhooksPage struct {
	Hooks   []webhook
	Next    string // number of the next page; "" on the last
	Counts  [3]verdictCount
	Skipped int64 // not recorded among the others
}

type verdictCount struct {
	Verdict string
	Count   int
}

const hooksShown = 100

// loadWebhooks loads the webhooks received last. Only admins see them, because of what strangers may have put
// into refused ones.
func (d *Dashboard) loadWebhooks(ctx context.Context, q url.Values, admin bool) (any, error) {
	p := webhooksPage{Counts: [3]verdictCount{{Verdict: "accepted"}, {Verdict: "ignored"}, {Verdict: "refused"}}}
	if !admin {
		return p, nil
	}
	all, err := intake.Recent(ctx, d.cfg.Redis, events.Namespace(d.cfg.Realm))
	if err != nil {
		return nil, err
	}
	text, verdict := strings.ToLower(strings.TrimSpace(q.Get("q"))), q.Get("verdict")
	for _, r := range all {
		w := webhook{r, verdictOf(r)}
		for i := range p.Counts {
			if p.Counts[i].Verdict == w.Verdict {
				p.Counts[i].Count++
			}
		}
		p.Skipped += r.Skipped
		if (verdict == "" || verdict == w.Verdict) && w.contains(text) {
			p.Hooks = append(p.Hooks, w)
		}
	}
	p.Hooks, p.Next = pageOf(p.Hooks, q.Get("n"), hooksShown)
	return p, nil
}

func (w webhook) contains(text string) bool {
	for _, field := range []string{w.Repo, w.Source, w.Delivery, w.Event} {
		if strings.Contains(strings.ToLower(field), text) {
			return true
		}
	}
	return false
}
