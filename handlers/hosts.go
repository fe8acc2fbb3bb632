package handlers

import (
	"context"
	"net/http"
	"strings"
	"time"

	"lockstep/events"
)

// Hosts limits the requests to the hosts of remotes. It must be safe for concurrent use.
type Hosts interface {
	// Enter returns a permit for one request. It must not wait for another permit to become free: if the request may not
	// be sent now, it returns an [events.Error] with the disposition Contention and the class [events.ClassLimited],
	// which wraps a retryable one if the host is the cause: of the class network if it does not answer, limited if it
	// tells its clients to wait.
	Enter(ctx context.Context, req HostRequest) (HostPermit, error)
	// Leave ends the permits that are kept for further requests of a job. It is called when the job has ended.
	Leave(ctx context.Context, repo events.RepoPath)
}

// HostRequest describes a request to a host.
type HostRequest struct {
	Host       string // in lower case, with the port unless it is the default of the scheme
	Credential string // name of the credential; "" for an anonymous request
	Repo       events.RepoPath
	Kind       HostKind

	// Optional is set if the job can continue without the request. If it may not be sent now, the job must not wait for it.
	Optional bool
}

// HostKind is the reason for a request.
type HostKind string

// The kinds, most urgent first.
const (
	HostPush  HostKind = "push"  // first attempt at a change
	HostRetry HostKind = "retry" // a later attempt
	HostPoll  HostKind = "poll"  // a poll, or a change requested by one
)

// HostPermit is the permission for one request.
type HostPermit interface {
	// Done is called once, when the request has ended, even if ctx is done. If it returns an error, the job must stop.
	Done(ctx context.Context, a HostAnswer) error
}

// HostAnswer is how a host answered a request.
type HostAnswer struct {
	Status  int           // HTTP status; 0 for SSH, and if there was no response
	Header  http.Header   // nil if Status is 0
	Latency time.Duration // until the first byte of the response; 0 if there was none
	Err     error         // nil if the request succeeded. Its class is events.ClassLimited if the host limits requests
	More    bool          // another request of the same job may follow, for which the permit may be kept
}

// Gate admits the requests of one job to remotes. An implementation of [Repos] calls Enter before each request and Done
// after it, and returns their errors with the same disposition and class. optional is as in [HostRequest].
type Gate interface {
	Enter(ctx context.Context, host string, optional bool) (HostPermit, error)
}

// gate asks for the permits of a job's requests.
type gate struct {
	hosts      Hosts
	job        events.Job
	credential string
}

func (g gate) Enter(ctx context.Context, host string, optional bool) (HostPermit, error) {
	return g.hosts.Enter(ctx, HostRequest{
		Host: host, Credential: g.credential, Repo: g.job.Change.Repo, Kind: HostKindOf(g.job), Optional: optional,
	})
}

// pollID starts the IDs of the changes that a poll requests.
const pollID = "poll/"

// isOfPoll reports whether a poll requested a change.
func isOfPoll(change events.Change) bool { return strings.HasPrefix(change.ID, pollID) }

// HostKindOf returns the kind of the requests of a job.
func HostKindOf(job events.Job) HostKind {
	switch {
	case job.Change.Type == events.ChangeDue, isOfPoll(job.Change):
		return HostPoll
	case job.Attempt > 1:
		return HostRetry
	}
	return HostPush
}
