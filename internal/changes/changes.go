// Package changes makes the messages of changes and results, and follows changes to their results.
//
//	msg, err := changes.Message(change)
//	…
//	entry, err := publisher.Add(ctx, namespace.Changes(), msg)
//	…
//	progress, err := changes.NewTracker(client, namespace).Wait(ctx, entry)
package changes

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// Message returns the message that publishes a change. Its UUID is the change's ID, which is generated if empty.
func Message(c events.Change) (*message.Message, error) {
	if c.ID == "" {
		c.ID = watermill.NewUUID()
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("marshal change %s: %w", c.ID, err)
	}
	return message.NewMessage(c.ID, payload), nil
}

// ResultMessage returns the message that publishes a result. Its UUID is the result's ID.
func ResultMessage(r events.Result) (*message.Message, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("marshal result %s: %w", r.ID, err)
	}
	return message.NewMessage(r.ID, payload), nil
}
