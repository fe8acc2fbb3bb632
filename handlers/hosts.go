package handlers

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/state"
)

// Limit is the middleware that waits until a change may send requests to its remote's host, and to the other hosts that
// the last sync of its ref needed. A change that must wait elsewhere is refused, before anything is acquired for it.
func (c *Changes) Limit(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		change, err := parseOnce(msg)
		if err != nil || c.Limiter == nil {
			return next(msg) // Request reports the error
		}
		ctx := msg.Context()
		requests := c.Limiter.Job(change.Repo.Key(), change.Type == events.ChangeDue || isOfPoll(change))
		defer requests.Leave(ctx)
		if err := c.enter(ctx, requests, change); err != nil {
			return nil, err
		}
		msg.SetContext(context.WithValue(ctx, requestsKey{}, requests))
		return next(msg)
	}
}

// requestsKey is the key of the requests of a change in the context of its message.
type requestsKey struct{}

// enter waits for the host of a change. A poll needs that of any watch.
func (c *Changes) enter(ctx context.Context, requests *hosts.Job, change events.Change) error {
	if change.Type == events.ChangeDue {
		return c.enterPoll(ctx, requests, change)
	}
	remote, err := url.Parse(c.Asked(change.URL))
	if err != nil || change.Type == events.ChangeRemoved && change.Force { // does not contact the remote
		return nil
	}
	own := hosts.Target{Host: events.HostPort(remote), Credential: change.Credential}
	targets := []hosts.Target{own}
	if c.Limiter.IsLimited() && change.Type == events.ChangePushed { // the other types only list the remote's refs
		needed, err := c.States.Hosts(ctx, change.Repo, change.Ref)
		if err != nil {
			return redisError(err)
		}
		for _, text := range strings.Fields(needed) {
			if target, ok := hosts.ParseTarget(text); ok && target.Host != own.Host {
				targets = append(targets, target)
			}
		}
	}
	var refused error
	for _, target := range slices.Backward(targets) {
		err := requests.Enter(ctx, target) // also after a refusal: a repository keeps its places only while it asks
		switch {
		case err == nil:
		case events.RetryAfter(err) == 0:
			return err
		case refused == nil || events.RetryAfter(err) > events.RetryAfter(refused):
			refused = err
		}
	}
	return refused
}

func (c *Changes) enterPoll(ctx context.Context, requests *hosts.Job, change events.Change) error {
	set, err := c.Watches.Of(ctx, change.Repo)
	if err != nil {
		return redisError(err)
	}
	var refused error
	tried := map[hosts.Target]bool{}
	for _, w := range set.Watches {
		remote, err := url.Parse(c.Asked(w.URL))
		if err != nil {
			continue
		}
		target := hosts.Target{Host: events.HostPort(remote), Credential: w.Credential}
		if tried[target] {
			continue
		}
		tried[target] = true
		err = requests.Enter(ctx, target)
		if err == nil {
			return nil
		}
		refused = cmp.Or(refused, err)
	}
	return refused
}

const maxNoted = 16 // other hosts of a ref that a later sync waits for before its lease

// noteHosts adds the other hosts that a sync of a ref has needed to the state: other refs do not wait for them.
func (h *Handlers) noteHosts(outcome *Outcome, job Job) {
	if job.Requests == nil {
		return
	}
	change, others := job.Change, []string{}
	remote, err := url.Parse(h.Volume.Asked(change.URL))
	if err != nil {
		return
	}
	targets := job.Requests.Targets()
	for _, target := range targets {
		if target.Host != events.HostPort(remote) && len(others) < maxNoted {
			others = append(others, target.String())
		}
	}
	switch {
	case len(others) > 0:
		outcome.State[state.HostsField(change.Ref)] = strings.Join(others, " ")
	case len(targets) > 0 && job.Known.NeedsHosts(change.Ref):
		outcome.Drop = append(outcome.Drop, state.HostsField(change.Ref))
	}
}

// limiter returns the limiter of a job's requests with a credential, or nil without limits.
func (j Job) limiter(credential string) wire.Limiter {
	if j.Requests == nil {
		return nil
	}
	return j.Requests.With(credential)
}

// pollID starts the IDs of the changes that a poll requests.
const pollID = "poll/"

// isOfPoll reports whether a poll requested a change.
func isOfPoll(change events.Change) bool { return strings.HasPrefix(change.ID, pollID) }
