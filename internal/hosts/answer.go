package hosts

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"lockstep/internal/egress"
	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

// Outcome is what an answer says about the host.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"      // also of errors that concern the repository or the credential
	Failed  Outcome = "failed"  // no answer, or a server error
	Refused Outcome = "limited" // the host wants fewer requests with this credential
	Ignored Outcome = "none"    // it says nothing about the host
)

// classify also returns how long the host wants to be left alone, 0 if it has not said.
func classify(a wire.Answer) (Outcome, time.Duration) {
	said, class := egress.ReadRateLimit(a.Header, time.Now()), git.ClassOf(a.Err)
	after := cmp.Or(said.Wait(), git.RetryAfter(a.Err))
	switch {
	case a.Status == http.StatusTooManyRequests,
		a.Status == http.StatusForbidden && (said.RetryAfter > 0 || said.Remaining == 0),
		a.Status < 500 && class == git.ClassBusy:
		return Refused, after
	case a.Status == http.StatusServiceUnavailable:
		return Failed, after
	case a.Status >= 500, class == git.ClassNetwork, errors.Is(a.Err, context.DeadlineExceeded):
		return Failed, 0
	case class == git.ClassAuth, class == git.ClassNotFound, class == git.ClassNoRef: // over SSH, no status says so
		return OK, 0
	case a.Status == 0 && a.Err != nil: // cancelled, or an error of this side
		return Ignored, 0
	case said.Remaining == 0:
		return OK, said.Reset
	}
	return OK, 0
}
