package router

import (
	"github.com/ThreeDotsLabs/watermill/message"
)

// Admit is the middleware that may refuse a message before anything is acquired for it. A refused message costs no
// lease.
func Admit(admit func(msg *message.Message) error) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if err := admit(msg); err != nil {
				return nil, err
			}
			return next(msg)
		}
	}
}
