// Command fields publishes a change as plain fields and waits for its result:
//
//	REDIS_URL=redis://127.0.0.1:6379 fields https://git.example.com/acme/widgets.git
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const changes, results = "lockstep:{0}:changes", "lockstep:{0}:results"

// result is the part of a result that this program uses.
type result struct {
	Type string `json:"type"`
	Data struct {
		After      string   `json:"after"`
		Tree       string   `json:"tree"`
		Error      string   `json:"error"`
		Deliveries []string `json:"deliveries"` // IDs of its changes
	} `json:"data"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: fields URL")
		os.Exit(2)
	}
	if err := run(os.Args[1], rand.Text()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	options, err := redis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()

	from := "0-0"
	last, err := client.XRevRangeN(ctx, results, "+", "-", 1).Result() // current end of the stream
	if err != nil {
		return err
	}
	if len(last) > 0 {
		from = last[0].ID
	}
	fields := []string{"id", id, "url", url, "ref", "refs/heads/main"}
	if err := client.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: fields}).Err(); err != nil {
		return err // it may still have been added: retry with the same ID
	}
	fmt.Println("published", id)

	answer, err := await(ctx, client, from, id)
	switch {
	case err != nil:
		return fmt.Errorf("wait for the result of %s: %w", id, err)
	case answer.Type != "lockstep.result.synced.v1":
		return fmt.Errorf("%s: %s", answer.Type, answer.Data.Error)
	}
	fmt.Println("synced", answer.Data.After, "in", answer.Data.Tree)
	return nil
}

// await reads results after an entry until it finds the one of the change.
func await(ctx context.Context, client *redis.Client, from, id string) (result, error) {
	for {
		read, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{results, from}, Count: 100, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) {
			continue // none within a second
		}
		if err != nil {
			return result{}, err
		}
		for _, entry := range read[0].Messages {
			from = entry.ID
			var r result
			payload, _ := entry.Values["payload"].(string)
			if err := json.Unmarshal([]byte(payload), &r); err != nil {
				return result{}, err
			}
			if slices.Contains(r.Data.Deliveries, id) {
				return r, nil
			}
		}
	}
}
