package dashboard

import (
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// settled is a result as it is shown. What is in the lower half is for those with the token alone, as it is in the
// API.
type settled struct {
	Entry   string
	At      time.Time
	Outcome string
	Repo    string
	Ref     string
	After   string
	To      string
	Took    time.Duration
	Delay   time.Duration // from the change's entry to the result's
	Delayed bool          // Delay is known

	App      string
	Worker   string
	Job      string
	Class    string
	Error    string
	Files    int
	More     bool // files than that
	Attempts int

	kind   int
	polled bool
}

// parseSettled reads a result's entry; false when it is none.
func parseSettled(e redis.XMessage) (settled, bool) {
	payload, _ := e.Values["payload"].(string)
	r, err := events.ParseResult([]byte(payload))
	if err != nil {
		return settled{}, false
	}
	at := events.EntryTime(e.ID)
	s := settled{
		Entry: e.ID, At: at, Class: clip(40, string(r.Class)), Repo: clip(300, r.Repo.String()), Ref: clip(200, r.Ref.String()),
		After: clip(64, r.After), To: clip(300, r.To.String()), Took: r.Took, App: clip(100, r.App), Worker: clip(100, workerOf(r.Source)),
		Error: clip(300, r.Error), Files: len(r.Files), More: r.Truncated, Attempts: r.Attempts, kind: outOther,
	}
	s.Job, _, _ = strings.Cut(r.ID, "/")
	s.Job = clip(100, s.Job)
	// A result's id ends in "/" and the entry of the change that it answers.
	if asked := events.EntryTime(r.ID[strings.LastIndexByte(r.ID, '/')+1:]); !asked.IsZero() && !asked.After(at) {
		s.Delay, s.Delayed = at.Sub(asked), true
	}
	switch r.Type {
	case events.ResultSynced:
		s.Outcome, s.kind = "synced", outSynced
		if r.Before == r.After {
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

// delay is negative when it is not known, or nobody waited for it.
func (s settled) delay() time.Duration {
	if !s.Delayed || s.polled {
		return -1
	}
	return s.Delay
}

// workerOf is the worker in a result's source, as /lockstep/worker/w1.
func workerOf(source string) string { return source[strings.LastIndexByte(source, '/')+1:] }
