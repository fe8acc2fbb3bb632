// Package changes makes the messages of changes and results, decodes results, and follows changes to their results.
//
//	entry, err := changes.Publish(ctx, client, namespace, change)
//	…
//	progress, err := changes.NewTracker(client, namespace).Wait(ctx, entry)
package changes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"lockstep/events"
	"lockstep/events/stream"
)

// Publish adds a change to the stream of changes, with the trace of ctx, and returns the ID of its entry.
func Publish(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, c events.Change,
) (entry string, err error) {
	msg, err := Message(c)
	if err != nil {
		return "", err
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	return add(ctx, client, namespace.Changes(), msg)
}

// PublishResult adds a result to the stream of results.
func PublishResult(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, r events.Result,
) error {
	msg, err := ResultMessage(r)
	if err != nil {
		return err
	}
	_, err = add(ctx, client, namespace.Results(), msg)
	return err
}

func add(
	ctx context.Context, client redis.UniversalClient, topic string, msg *message.Message,
) (entry string, err error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return "", err
	}
	return publisher.Add(ctx, topic, msg)
}

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

// Kind returns the short form of a type of changes or results, such as synced.
func Kind[T events.ChangeType | events.ResultType](t T) string {
	parts := strings.Split(string(t), ".")
	return parts[max(0, len(parts)-2)]
}

// ParseResult decodes an entry of a stream of results.
func ParseResult(e redis.XMessage) (events.Result, error) {
	payload, _ := e.Values["payload"].(string)
	return events.ParseResult([]byte(payload))
}

// ResultOf decodes an entry if it is a result of a repository or of its move to that name.
func ResultOf(e redis.XMessage, repo events.RepoPath) (events.Result, bool) {
	payload, _ := e.Values["payload"].(string)
	if !strings.Contains(strings.ToLower(payload), `"`+repo.Key()+`"`) { // saves decoding it
		return events.Result{}, false
	}
	r, err := ParseResult(e)
	return r, err == nil && (r.Repo.Equal(repo) || r.To.Equal(repo))
}
