package stream

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
)

// ChangeMessage makes the message that asks for a change. Its UUID is the change's ID; a change
// without one is given one.
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

// Fields are the names and values of the stream entry that a [Publisher] would make of a message, in
// turn, for a script that adds it together with other changes.
func Fields(msg *message.Message) ([]string, error) { return encode("", msg) }

// ResultMessage makes the message that reports a result. Its UUID is the result's ID, which the
// caller derives from what it answers, so that reporting twice can be noticed.
func ResultMessage(r events.Result) (*message.Message, error) {
	payload, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("marshal result %s: %w", r.ID, err)
	}
	return message.NewMessage(r.ID, payload), nil
}
