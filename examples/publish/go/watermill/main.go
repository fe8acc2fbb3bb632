// Command watermill publishes a change as a CloudEvents document with Watermill's publisher and waits for its result with
// Watermill's subscriber:
//
//	REDIS_URL=redis://127.0.0.1:6379 watermill https://git.example.com/acme/widgets.git
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

const changes, results = "lockstep:{0}:changes", "lockstep:{0}:results"

// event is a CloudEvents 1.0 document: a change or a result.
type event struct {
	SpecVersion string    `json:"specversion"`
	ID          string    `json:"id"`
	Source      string    `json:"source"`
	Type        string    `json:"type"`
	Time        time.Time `json:"time"`
	Data        data      `json:"data"`
}

type data struct {
	Repo string `json:"repo"` // the path of the clone
	URL  string `json:"url,omitempty"`
	Ref  string `json:"ref,omitempty"`

	After      string   `json:"after,omitempty"`
	Tree       string   `json:"tree,omitempty"`
	Error      string   `json:"error,omitempty"`
	Deliveries []string `json:"deliveries,omitempty"` // of a result: the IDs of its changes
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: watermill URL REPO")
		os.Exit(2)
	}
	change := event{
		SpecVersion: "1.0", ID: watermill.NewUUID(), Source: "/examples/publish", Type: "lockstep.change.pushed.v1", Time: time.Now().UTC(),
		Data: data{URL: os.Args[1], Repo: os.Args[2], Ref: "refs/heads/main"},
	}
	if err := run(change); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(change event) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	options, err := redis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()

	answers, err := follow(ctx, client)
	if err != nil {
		return err
	}
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(change)
	if err != nil {
		return err
	}
	if err := publisher.Publish(changes, message.NewMessage(change.ID, payload)); err != nil {
		return err // it may still have been added: retry with the same ID
	}
	fmt.Println("published", change.ID)

	for msg := range answers {
		var answer event
		if err := json.Unmarshal(msg.Payload, &answer); err != nil {
			return err
		}
		msg.Ack()
		switch {
		case !slices.Contains(answer.Data.Deliveries, change.ID):
		case answer.Type != "lockstep.result.synced.v1":
			return fmt.Errorf("%s: %s", answer.Type, answer.Data.Error)
		default:
			fmt.Println("synced", answer.Data.After, "in", answer.Data.Tree)
			return nil
		}
	}
	return fmt.Errorf("wait for the result of %s: %w", change.ID, ctx.Err())
}

// follow subscribes to results after the current end of the stream, without a consumer group. It does not use "$", which
// Watermill resolves after Subscribe has returned, when the result may already be there.
func follow(ctx context.Context, client *redis.Client) (<-chan *message.Message, error) {
	from := "0-0"
	last, err := client.XRevRangeN(ctx, results, "+", "-", 1).Result()
	if err != nil {
		return nil, err
	}
	if len(last) > 0 {
		from = last[0].ID
	}
	subscriber, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client, FanOutOldestId: from, DisableIndefiniteInitialBlock: true,
	}, nil)
	if err != nil {
		return nil, err
	}
	return subscriber.Subscribe(ctx, results) // until ctx is done
}
