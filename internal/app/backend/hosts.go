package backend

import (
	"context"
	"errors"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/hosts"
)

// Hosts implements [handlers.Hosts].
type Hosts struct{ Budgets *hosts.Budgets }

// Enter returns a permit, or an error of the class limited.
func (h Hosts) Enter(ctx context.Context, req handlers.HostRequest) (handlers.HostPermit, error) {
	r := hosts.Request{Host: req.Host, Credential: req.Credential, Repo: req.Repo, Kind: hosts.Kind(req.Kind), Optional: req.Optional}
	held, err := h.Budgets.Enter(ctx, r)
	if err != nil {
		return nil, limited(err)
	}
	return hostPermit{held}, nil
}

// Leave ends the permits kept for a job's further requests.
func (h Hosts) Leave(ctx context.Context, repo events.RepoPath) { h.Budgets.Leave(ctx, repo) }

// Limited returns an error of the class limited if this process knows that the job may not ask the host now, else nil.
func (h Hosts) Limited(host string, job handlers.Job) error {
	r := hosts.Request{Host: host, Credential: job.Change.Credential, Repo: job.Change.Repo, Kind: hosts.Kind(handlers.HostKindOf(job))}
	if l := h.Budgets.Blocked(r); l != nil {
		return limited(l)
	}
	return nil
}

func limited(err error) error {
	l, ok := errors.AsType[*hosts.Limited](err)
	if !ok {
		return err
	}
	scope, fault := events.ScopeNone, hostFault(l)
	if _, ok := errors.AsType[*events.Error](fault); ok {
		scope = events.ScopeHost
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

type hostPermit struct{ held *hosts.Permit }

// Done reports the answer. The permit may be kept if more requests follow.
func (p hostPermit) Done(ctx context.Context, a handlers.HostAnswer) error {
	p.held.Done(ctx, hosts.Answer(a))
	return nil
}
