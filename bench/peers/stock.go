package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
)

// stock is Watermill's own router and Redis Streams subscribers, with redsync's lock in the handler, all with their defaults. A
// subscriber handles one message at a time, so each slot is a subscriber. It does what Lockstep does, but not in one step: it reads
// a change, publishes a result with the stock publisher, and writes the repository's state.
var stock = contestant{
	version: version("github.com/ThreeDotsLabs/watermill-redisstream") + ", redsync " + version("github.com/go-redsync/redsync/v4"),
	queue: func(_ context.Context, s settings) (func(event, repo string) error, func() error, error) {
		publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.client}, nil)
		return func(event, repo string) error {
			data := map[string]any{"repo": repo, "url": "https://example.com/" + repo + ".git", "ref": "refs/heads/main"}
			return publishDocument(publisher, s.prefix+"changes", "lockstep.change.pushed.v1", event, repo, data)
		}, noEnd, err
	},
	work: workStock,
}

func workStock(ctx context.Context, s settings, report reporter) (func(context.Context) error, error) {
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.client}, nil)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	for i := range s.slots {
		client, err := openGoRedis(ctx, s.redis) // one for each subscriber, which closes it
		if err != nil {
			return nil, err
		}
		subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: client, ConsumerGroup: "workers"}, nil)
		if err != nil {
			return nil, err
		}
		router.AddConsumerHandler(fmt.Sprintf("slot %d", i), s.prefix+"changes", subscriber, s.stockHandler(publisher, report))
	}
	return func(ctx context.Context) error {
		stopped := make(chan error, 1)
		go func() { stopped <- router.Run(context.WithoutCancel(ctx)) }()
		<-ctx.Done()
		return errors.Join(router.Close(), <-stopped)
	}, nil
}

// stockHandler works under the repository's lock. If redsync's 32 tries fail it returns an error, which nacks the message, and
// the same subscriber gets it again at once.
func (s settings) stockHandler(publisher message.Publisher, report reporter) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		var change struct{ Data struct{ Repo, URL string } }
		if err := json.Unmarshal(msg.Payload, &change); err != nil {
			return err
		}
		repo := change.Data.Repo
		release, err := newRedsync(s.client, s.prefix+"lock:"+repo).acquire(msg.Context())
		if err != nil {
			return err
		}
		began := monotonic()
		time.Sleep(s.work)
		ended := monotonic()
		if err := s.publish(msg.Context(), publisher, msg.UUID, repo, change.Data.URL); err != nil {
			return errors.Join(err, release(), report(msg.UUID, began, ended, 0))
		}
		if err := release(); err != nil {
			return errors.Join(err, report(msg.UUID, began, ended, 0))
		}
		// The ack comes later, and the subscriber does not report it, so this time is slightly too early.
		return report(msg.UUID, began, ended, monotonic())
	}
}

// publishDocument publishes a CloudEvents document as Lockstep's changes and results are.
func publishDocument(publisher message.Publisher, topic, kind, id, repo string, data map[string]any) error {
	payload, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/lockstep/bench", "type": kind, "subject": repo,
		"time": time.Now().UTC(), "datacontenttype": "application/json", "data": data,
	})
	if err != nil {
		return err
	}
	return publisher.Publish(topic, message.NewMessage(id, payload))
}

// publish publishes the result of an event and writes the repository's state.
func (s settings) publish(ctx context.Context, publisher message.Publisher, event, repo, url string) error {
	commit := strings.Repeat("0", 40-len(event)) + event
	err := publishDocument(publisher, s.prefix+"results", "lockstep.result.synced.v1", event+"/result", repo, map[string]any{
		"repo": repo, "ref": "refs/heads/main", "deliveries": []string{event}, "took_ms": 0, "after": commit, "path": repo,
		"tree": ".lockstep/repos/" + repo + "/trees/" + commit, "files": []any{map[string]string{"path": "a.txt", "status": "modified"}},
	})
	if err != nil {
		return err
	}
	return s.client.HSet(ctx, s.prefix+"repo:"+repo, "repo", repo, "url", url, "synced", time.Now().UTC().Format(time.RFC3339Nano),
		"head:refs/heads/main", commit, "given:refs/heads/main:", commit).Err()
}
