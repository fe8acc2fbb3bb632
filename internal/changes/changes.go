// Package changes makes the messages of changes and results, decodes results, and follows changes to their results.
//
//	msg, err := changes.Message(change)
//	…
//	entry, err := publisher.Add(ctx, namespace.Changes(), msg)
//	…
//	progress, err := changes.NewTracker(client, namespace).Wait(ctx, entry)
package changes

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

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
