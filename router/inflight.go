package router

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/locking"
)

// inFlight is the router's data about a message while it is handled. Watermill passes nothing but the message
// to handlers and middlewares, so the data is a value of the message's context. Only this file accesses it.
type inFlight struct {
	leases locking.Leases // set by Lock
}

type inFlightKey struct{}

// inFlightOf returns the inFlight of msg. The first call adds a new inFlight to the message's context.
func inFlightOf(msg *message.Message) *inFlight {
	if flight, ok := msg.Context().Value(inFlightKey{}).(*inFlight); ok {
		return flight
	}
	flight := &inFlight{}
	msg.SetContext(context.WithValue(msg.Context(), inFlightKey{}, flight))
	return flight
}

// Leases returns the leases that [Lock] holds for msg, in the order of their requests.
func Leases(msg *message.Message) locking.Leases { return inFlightOf(msg).leases }
