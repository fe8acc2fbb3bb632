package router

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/router/observe"
)

// Observe is the middleware that reports each delivery to an observer. It must be the outermost one.
func Observe(observer *observe.Observer, topic string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			before, flight := msg.Context(), inFlightOf(msg)
			flight.observed = observer.Start(msg, topic)
			msg.SetContext(flight.observed.Context())
			defer func() {
				msg.SetContext(before)
				flight.observed.End()
			}()
			return next(msg)
		}
	}
}
