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

// MetadataUncounted, set to "true" in a message's metadata before it is nacked, keeps the nack from
// counting as a failed attempt: nothing was tried. The delay before it is delivered again is that of
// Watermill's components/delay, if the metadata has one.
const MetadataUncounted = "lockstep_uncounted"

// decode makes a message of an entry. Whatever is wrong with the entry is an error, never a panic:
// it was written by somebody else.
func decode(u redisstream.Unmarshaller, e entry) (*message.Message, error) {
	values := make(map[string]any, len(e.fields)/2)
	for i := 0; i+1 < len(e.fields); i += 2 {
		values[e.fields[i]] = e.fields[i+1]
	}
	msg, err := unmarshal(u, values)
	if err != nil {
		return nil, err
	}
	if msg.UUID == "" {
		msg.UUID = e.id
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	// How a nack is meant is for this delivery to say, not for whoever published the message.
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

// Metadata is what was published beside a message's payload, of the fields of its entry as XREAD returns them. It is
// nil when that cannot be read.
func Metadata(fields map[string]any) message.Metadata {
	msg, err := unmarshal(unmarshaller{}, fields)
	if err != nil {
		return nil
	}
	return msg.Metadata
}

// unmarshaller reads Watermill's wire format, and anything else as plain fields.
type unmarshaller struct {
	redisstream.DefaultMarshallerUnmarshaller
}

// Unmarshal makes of plain fields a message whose payload is a flat JSON object of them, whose
// UUID is the field "id", if there is one, and whose metadata is a trace context, if they have one.
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
	for _, name := range []string{"traceparent", "tracestate"} { // fields of W3C Trace Context
		if value, ok := values[name].(string); ok {
			msg.Metadata.Set(name, value)
		}
	}
	return msg, nil
}

// encode returns a message's fields in the wire format, for a script to add.
func encode(stream string, msg *message.Message) ([]string, error) {
	values, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(stream, msg)
	if err != nil {
		return nil, err
	}
	metadata, _ := values["metadata"].([]byte)
	return []string{redisstream.UUIDHeaderKey, msg.UUID, "metadata", string(metadata), "payload", string(msg.Payload)}, nil
}
