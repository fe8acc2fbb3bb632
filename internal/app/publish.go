package app

import (
	"context"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"lockstep/events"
	"lockstep/events/stream"
)

// PublishChange appends a change to the stream of changes.
func PublishChange(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change) error {
	_, err := Enqueue(ctx, client, namespace, change)
	return err
}

// Enqueue is publishChange, and returns the change's entry. The change carries on the trace of ctx, if it has one.
func Enqueue(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change) (entry string, err error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
	if err != nil {
		return "", err
	}
	msg, err := stream.ChangeMessage(change)
	if err != nil {
		return "", err
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	return publisher.Add(ctx, namespace.Changes(), msg)
}

func TrackerConfig(client redis.UniversalClient, namespace events.Namespace) stream.TrackerConfig {
	return stream.TrackerConfig{Redis: client, Changes: namespace.Changes(), Group: events.WorkersGroup, Results: namespace.Results()}
}
