package stream

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
)

// MetadataUncounted, set to "true" in a message's metadata before it is nacked, prevents the nack from counting as a
// failed attempt. The redelivery delay is that of Watermill's components/delay, if the metadata contains one.
const MetadataUncounted = "lockstep_uncounted"

// decode converts an entry to a message. It never panics: other programs may have written the entry.
func decode(u redisstream.Unmarshaller, id string, values map[string]any) (*message.Message, error) {
	msg, err := unmarshal(u, values)
	if err != nil {
		return nil, err
	}
	if msg.UUID == "" {
		msg.UUID = id
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	// Only the consumer may set how a nack counts, not the publisher.
	for _, key := range []string{MetadataUncounted, delay.DelayedForKey, delay.DelayedUntilKey} {
		delete(msg.Metadata, key)
	}
	return msg, nil
}

func unmarshal(u redisstream.Unmarshaller, values map[string]any) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			msg, err = nil, fmt.Errorf("unmarshal: panic: %v", r)
		}
	}()
	if msg, err = u.Unmarshal(values); err == nil && msg == nil {
		return nil, errors.New("unmarshal: no message, and no error")
	}
	return msg, err
}

// Metadata returns the metadata of an entry as XREAD returns it, or nil if it cannot be decoded.
func Metadata(fields map[string]any) message.Metadata {
	msg, err := unmarshal(unmarshaller{}, fields)
	if err != nil {
		return nil
	}
	return msg.Metadata
}

// unmarshaller decodes Watermill's wire format, and anything else as plain fields.
type unmarshaller struct {
	redisstream.DefaultMarshallerUnmarshaller
}

// Unmarshal turns plain fields into a message. Its payload is a flat JSON object of the fields, its UUID the
// field "id", and its metadata the trace context; the last two are optional.
func (u unmarshaller) Unmarshal(values map[string]any) (*message.Message, error) {
	if _, ok := values[redisstream.UUIDHeaderKey]; ok {
		if _, ok := values["payload"]; !ok {
			return nil, errors.New("has " + redisstream.UUIDHeaderKey + ", but no payload")
		}
		return u.DefaultMarshallerUnmarshaller.Unmarshal(values)
	}
	if len(values) == 0 {
		return nil, errors.New("has no fields")
	}
	for name, value := range values {
		if text, ok := value.(string); !ok || !utf8.ValidString(text) || !utf8.ValidString(name) {
			return nil, fmt.Errorf("neither Watermill's wire format nor plain fields: field %.80q is not text", name)
		}
	}
	payload, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	id, _ := values["id"].(string)
	msg := message.NewMessage(id, payload)
	for _, name := range []string{"traceparent", "tracestate"} { // W3C Trace Context
		if value, ok := values[name].(string); ok {
			msg.Metadata.Set(name, value)
		}
	}
	return msg, nil
}

// Fields returns the entry that a [Publisher] would add for a message, as alternating names and values, for
// scripts that add it together with other writes.
func Fields(msg *message.Message) ([]string, error) {
	values, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("", msg)
	if err != nil {
		return nil, err
	}
	metadata, _ := values["metadata"].([]byte)
	return []string{redisstream.UUIDHeaderKey, msg.UUID, "metadata", string(metadata), "payload", string(msg.Payload)}, nil
}
