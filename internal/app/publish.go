package app

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/propagation"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
)

// PublishChange appends a change to the changes stream. It propagates the trace context of ctx.
func PublishChange(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change,
) error {
	_, err := Enqueue(ctx, client, namespace, change)
	return err
}

// Enqueue is like [PublishChange], but returns the id of the stream entry.
func Enqueue(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change,
) (entry string, err error) {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return "", err
	}
	msg, err := changes.Message(change)
	if err != nil {
		return "", err
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Metadata))
	return publisher.Add(ctx, namespace.Changes(), msg)
}

// AnnouncePurge appends a result that notifies all readers of a repository of a purged commit.
// fence is the fence of the lease that the purge held.
func AnnouncePurge(
	ctx context.Context, client redis.UniversalClient, namespace events.Namespace, repo events.RepoPath, fence uint64,
	commit string,
) error {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return err
	}
	msg, err := changes.ResultMessage(events.Result{
		ID: fmt.Sprintf("purge/%s/%d", repo.Key(), fence), Type: events.ResultPurged, Source: "/lockstep/cli",
		Time: time.Now(),
		Repo: repo, Fence: fence, Commit: commit,
	})
	if err != nil {
		return err
	}
	_, err = publisher.Add(ctx, namespace.Results(), msg)
	return err
}
