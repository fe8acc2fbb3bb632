package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Undelivered calls yield for the results of a repository that wait to be posted to an app, in order.
func Undelivered(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, app string, repo events.RepoPath, yield func(events.Result)) error {
	const atOnce = 100
	box := namespace.Notifications() + ":box:" + app + " " + repo.Key()
	for from := int64(0); ; from += atOnce {
		items, err := client.LRange(ctx, box, from, from+atOnce-1).Result()
		if err != nil {
			return fmt.Errorf("read the notifications of %s to %s: %w", repo, app, err)
		}
		for _, text := range items {
			_, document, _ := strings.Cut(text, " ") // after its number
			var waiting item
			if json.Unmarshal([]byte(document), &waiting) != nil {
				continue
			}
			if result, err := events.ParseResult([]byte(waiting.Body)); err == nil {
				yield(result)
			}
		}
		if len(items) < atOnce {
			return nil
		}
	}
}
