package backend

import (
	"context"
	"errors"
	"sync"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/hosts"
)

// Hosts implements [handlers.Hosts]. Its zero value is not usable: see [NewHosts].
type Hosts struct {
	budgets *hosts.Budgets

	mu   sync.Mutex
	kept map[string][]hosts.Request // requests that may have kept their permits, by key of the repository
}

// NewHosts returns the limits of budgets.
func NewHosts(budgets *hosts.Budgets) *Hosts {
	return &Hosts{budgets: budgets, kept: make(map[string][]hosts.Request)}
}

// Enter returns a permit, or an error of the class limited.
func (h *Hosts) Enter(ctx context.Context, req handlers.HostRequest) (handlers.HostPermit, error) {
	r := hosts.Request{Host: req.Host, Credential: req.Credential, Repo: req.Repo, Kind: hosts.Kind(req.Kind)}
	held, err := h.budgets.Enter(ctx, r)
	if err != nil {
		return nil, limited(err)
	}
	return hostPermit{h, held, r}, nil
}

// Leave ends the permits kept for a job's further requests.
func (h *Hosts) Leave(ctx context.Context, repo events.RepoPath) {
	h.mu.Lock()
	kept := h.kept[repo.Key()]
	delete(h.kept, repo.Key())
	h.mu.Unlock()
	for _, req := range kept {
		h.budgets.Leave(ctx, req)
	}
}

// Limited returns an error of the class limited if this process knows that the host may not be asked with the credential
// now, else nil.
func (h *Hosts) Limited(host, credential string) error {
	if l := h.budgets.Blocked(host, credential); l != nil {
		return limited(l)
	}
	return nil
}

func limited(err error) error {
	l, ok := errors.AsType[*hosts.Limited](err)
	if !ok {
		return err
	}
	return &events.Error{Disposition: events.Contention, Class: events.ClassLimited, RetryAfter: l.RetryAfter, Err: l}
}

type hostPermit struct {
	h    *Hosts
	held *hosts.Permit
	req  hosts.Request
}

// Done reports the answer. The permit may be kept if more requests follow.
func (p hostPermit) Done(ctx context.Context, a handlers.HostAnswer) error {
	if a.More {
		p.h.mu.Lock()
		p.h.kept[p.req.Repo.Key()] = append(p.h.kept[p.req.Repo.Key()], p.req)
		p.h.mu.Unlock()
	}
	p.held.Done(ctx, hosts.Answer(a))
	return nil
}
