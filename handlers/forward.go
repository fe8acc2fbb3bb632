package handlers

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/watch"
	"lockstep/router"
)

// Forward is the middleware that hands a change over to the deployment to which its repository belongs. It
// requires Elsewhere, which must recognize a message that it has added before: the message is settled here in
// a second step, and if that fails it is delivered again. A forwarded change has no result here.
func (c *Changes) Forward(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		change, err := parseOnce(msg)
		if err != nil {
			return next(msg) // Request reports it
		}
		to, err := c.Elsewhere(msg, entryOf(msg), change.Repo)
		if err != nil {
			return nil, err
		}
		if to == "" {
			return next(msg)
		}
		produced, err := router.Commit(msg, stream.Settlement{State: watch.Settled(c.Namespace, change, false)})
		if err != nil {
			return nil, err
		}
		c.ended(msg.Context(), Event{Timeline: Timeline{Outcome: outcomeForwarded}})
		c.Log.InfoContext(msg.Context(), "change forwarded", "repo", change.Repo.String(), "job", change.ID, "to", to)
		return produced, nil
	}
}
