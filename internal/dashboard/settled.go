package dashboard

import (
	"strings"
	"time"

	"lockstep/events"
)

type settled struct {
	Entry   string
	At      time.Time
	Outcome string
	Repo    string
	Ref     string
	After   string
	To      string
	Tree    string
	Took    time.Duration
	Delay   time.Duration // from the change's entry to the result's
	Delayed bool          // Delay is known

	// For admins only, as in the API.
	App      string
	Worker   string
	Job      string
	Class    string
	Error    string
	Files    int
	More     bool // the result's list of files is truncated
	Attempts int

	kind   int
	polled bool
}

// settledOf returns a result of an entry. It returns false if the result is not that of a change. Results of views do
// not count: one change may have 10,000, which would hide all others. Nor do purges, which answer no change.
func settledOf(entry string, r events.Result) (settled, bool) {
	if r.Type == events.ResultView || r.Type == events.ResultPurged {
		return settled{}, false
	}
	at := events.EntryTime(entry)
	s := settled{
		Entry: entry, At: at, Class: clip(40, string(r.Class)), Repo: clip(300, r.Repo.String()),
		Ref:   clip(1000, r.Ref.String()),
		After: clip(64, r.After), To: clip(300, r.To.String()), Tree: clip(600, r.Tree), Took: r.Took,
		App: clip(100, r.App), Worker: clip(100, workerOf(r.Source)),
		Error: clip(300, r.Error), Files: len(r.Files), More: r.Truncated, Attempts: r.Attempts, kind: outOther,
	}
	s.Job, _, _ = strings.Cut(r.ID, "/")
	s.Job = clip(100, s.Job)
	if queued := events.EntryTime(r.Entry()); !queued.IsZero() && !queued.After(at) {
		s.Delay, s.Delayed = at.Sub(queued), true
	}
	switch r.Type {
	case events.ResultSynced:
		s.Outcome, s.kind = "synced", outSynced
		if r.Unchanged() {
			s.Outcome, s.kind = "unchanged", outUnchanged
		}
	case events.ResultFailed:
		s.Outcome, s.kind = "failed", outFailed
	case events.ResultRemoved:
		s.Outcome = "removed"
	case events.ResultMoved:
		s.Outcome = "moved"
	case events.ResultPolled:
		s.Outcome, s.polled = "polled", true
	default:
		s.Outcome = "other"
	}
	return s, true
}

// delay returns the latency to count, or -1 if it is unknown or the result is of a poll.
func (s settled) delay() time.Duration {
	if !s.Delayed || s.polled {
		return -1
	}
	return s.Delay
}

// workerOf returns the worker's name in a result's source, for example w1 in /lockstep/worker/w1.
func workerOf(source string) string { return source[strings.LastIndexByte(source, '/')+1:] }
