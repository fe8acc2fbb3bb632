package router

import "github.com/ThreeDotsLabs/watermill/message"

// WithKey gives messages a key as Lock does, without acquiring it, so that only slots order them.
func WithKey(key func(msg *message.Message) string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			inFlightOf(msg).key = key(msg)
			return next(msg)
		}
	}
}
