package stream

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// ChangeMessage returns the message that publishes a change. Its UUID is the change's ID, which is generated if empty.
func ChangeMessage(c events.Change) (*message.Message, error) {
	if c.ID == "" {
		c.ID = watermill.NewUUID()
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("marshal change %s: %w", c.ID, err)
	}
	return message.NewMessage(c.ID, payload), nil
}

// Fields returns the entry that a [Publisher] would add for a message, as alternating names and values, for
// scripts that add it together with other writes.
func Fields(msg *message.Message) ([]string, error) { return encode("", msg) }

// ResultMessage returns the message that publishes a result. Its UUID is the result's ID.
func ResultMessage(r events.Result) (*message.Message, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("marshal result %s: %w", r.ID, err)
	}
	return message.NewMessage(r.ID, payload), nil
}
