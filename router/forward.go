package router

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
)

// Forward is the middleware for messages that belong to another deployment. forward adds such a message to the stream there and returns
// a name for where that is, or "". It must recognize a message that it has added before: the message is settled here afterwards, in a
// second step, and if that fails it is delivered again. done is called for each message that is settled so; optional. A forwarded message
// costs neither a lease nor a slot, and has no result here.
func Forward(forward func(msg *message.Message) (to string, err error), done func(msg *message.Message, to string)) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			to, err := forward(msg)
			if err != nil {
				return nil, err
			}
			if to == "" {
				return next(msg)
			}
			produced, err := Commit(msg, stream.Settlement{})
			if err == nil && done != nil {
				done(msg, to)
			}
			return produced, err
		}
	}
}

// Forward hands a change over to the deployment to which its repository belongs, for [Route]. It requires Elsewhere.
func (c *Changes) Forward(msg *message.Message) (to string, err error) {
	change, err := parseOnce(msg)
	if err != nil {
		return "", nil // Request reports it
	}
	entry := msg.UUID
	if delivery, ok := stream.DeliveryOf(msg); ok {
		entry = delivery.Entry()
	}
	return c.Elsewhere(msg, entry, change.Repo)
}

// OnForward logs and observes a change that was handed over.
func (c *Changes) OnForward(msg *message.Message, to string) {
	change, err := parseOnce(msg)
	if err != nil {
		return
	}
	inFlightOf(msg).observed.Forwarded()
	c.Log.InfoContext(msg.Context(), "change forwarded", "repo", change.Repo.String(), "job", change.ID, "to", to)
}
