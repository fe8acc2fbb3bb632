package wire

import (
	"context"
	"io"
	"time"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

const (
	speculationBreak = time.Hour // without speculation after it was wrong
	maxRefusals      = 2         // refusals of commits that are advertised, before a break
)

// speculation is a Network's memory of fetching commits from a remote before their refs are listed.
type speculation struct {
	latest   object.ID // commit fetched so; it is not fetched so again
	refusals int
	pause    time.Time // end of a break
}

// TryGate is a [Gate] for optional requests too.
type TryGate interface {
	Gate
	// TryEnter is as Enter, but does not wait in a queue for a permit.
	TryEnter(ctx context.Context, host string) (Permit, error)
}

// StartSpeculation reports whether [Session.FetchUnlisted] may be called for a commit that the remote is said to have at a ref,
// while another session with the same credential lists that ref: the remote is known to speak protocol 2 over HTTP, and was not
// asked for this commit before. The caller must not use the pack unless the ref names the commit, and reports a wrong
// speculation to EndSpeculation.
func (r *Session) StartSpeculation(commit object.ID) bool {
	if offered := r.net.remotes.recall(r.url); !r.carrier.canPost() || offered == nil || offered.format != commit.Format() {
		return false
	}
	start := false
	r.net.remotes.speculate(r.url, func(s *speculation) {
		if start = s.latest != commit && time.Now().After(s.pause); start {
			s.latest = commit
		}
	})
	return start
}

// FetchUnlisted is [Session.Fetch] without an earlier List. It needs a successful StartSpeculation.
func (r *Session) FetchUnlisted(ctx context.Context, want FetchRequest, w io.Writer) (shallow []object.ID, err error) {
	offered := r.net.remotes.recall(r.url)
	if offered == nil {
		return nil, git.Errorf(git.Retryable, git.ClassServer, "the capabilities of %s are not known", r.host)
	}
	r.speak(offered)
	return r.Fetch(ctx, want, w)
}

// Speculation is how a speculation was wrong.
type Speculation int

// The wrong speculations.
const (
	Disproved Speculation = iota // the remote sent a pack of a commit that the ref does not name
	Refused                      // the remote refused a commit that it advertises
)

// EndSpeculation reports a wrong speculation. One that was disproved, or two that were refused, end speculation about the
// remote for an hour.
func (r *Session) EndSpeculation(wrong Speculation) {
	r.net.remotes.speculate(r.url, func(s *speculation) {
		if wrong == Refused {
			s.refusals++
		}
		if wrong == Disproved || s.refusals >= maxRefusals {
			s.refusals, s.pause = 0, time.Now().Add(speculationBreak)
		}
	})
}
