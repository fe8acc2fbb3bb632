package handlers

import (
	"cmp"
	"context"
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
)

// Limit is the middleware that waits until a change may send requests to its remote's host. A change that must wait
// elsewhere is refused, before anything is acquired for it.
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
	return requests.Enter(ctx, hosts.Target{Host: events.HostPort(remote), Credential: change.Credential})
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
