package handlers

import (
	"context"
	"errors"
	"strings"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
)

// gate asks for the permits of a job's requests.
type gate struct {
	hosts      *hosts.Budgets
	job        Job
	credential string
}

// gate returns the gate of a job's requests with a credential, or nil without limits.
func (h *Handlers) gate(job Job, credential string) wire.Gate {
	if h.Hosts == nil {
		return nil
	}
	return gate{h.Hosts, job, credential}
}

// Enter returns a permit, or an error of the class limited.
func (g gate) Enter(ctx context.Context, host string, optional bool) (wire.Permit, error) {
	req := requestOf(g.job, host, g.credential)
	req.Optional = optional
	held, err := g.hosts.Enter(ctx, req)
	if _, ok := errors.AsType[*hosts.Limited](err); ok && optional {
		return nil, wire.ErrNoPermit
	}
	if err != nil {
		return nil, limited(err)
	}
	return permit{held}, nil
}

type permit struct{ held *hosts.Permit }

// Done reports the answer. The permit may be kept if more requests follow.
func (p permit) Done(ctx context.Context, a wire.Answer) error {
	p.held.Done(ctx, hosts.Answer(a))
	return nil
}

// Limited returns an error of the class limited if this process knows that the job may not ask the host now, else nil.
func (h *Handlers) Limited(host string, job Job) error {
	if h.Hosts == nil {
		return nil
	}
	if l := h.Hosts.Blocked(requestOf(job, host, job.Change.Credential)); l != nil {
		return limited(l)
	}
	return nil
}

func requestOf(job Job, host, credential string) hosts.Request {
	return hosts.Request{Host: host, Credential: credential, Repo: job.Change.Repo, Kind: kindOf(job)}
}

// limited makes the refusal of a request an error that counts no attempt. It wraps a retryable one if the host is the cause.
func limited(err error) error {
	l, ok := errors.AsType[*hosts.Limited](err)
	if !ok {
		return err
	}
	scope, fault := events.ScopeNone, hostFault(l)
	if _, ok := errors.AsType[*events.Error](fault); ok {
		scope = events.ScopeHost
	}
	if scope == events.ScopeHost && l.Credential != "" {
		scope = events.ScopeHostCredential
	}
	return &events.Error{Disposition: events.Contention, Scope: scope, Class: events.ClassLimited, RetryAfter: l.RetryAfter, Err: fault}
}

// hostFault returns a retryable error if the host does not answer or tells its clients to wait.
func hostFault(l *hosts.Limited) error {
	switch l.Reason {
	case hosts.NoAnswer:
		return events.Errorf(events.Retryable, events.ClassNetwork, "%w", l)
	case hosts.RateLimit, hosts.HostLimit:
		return events.Errorf(events.Retryable, events.ClassLimited, "%w", l)
	}
	return l
}

// pollID starts the IDs of the changes that a poll requests.
const pollID = "poll/"

// isOfPoll reports whether a poll requested a change.
func isOfPoll(change events.Change) bool { return strings.HasPrefix(change.ID, pollID) }

// kindOf returns the kind of the requests of a job.
func kindOf(job Job) hosts.Kind {
	switch {
	case job.Change.Type == events.ChangeDue, isOfPoll(job.Change):
		return hosts.Poll
	case job.Attempt > 1:
		return hosts.Retry
	}
	return hosts.Push
}
