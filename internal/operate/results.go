package operate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/intake"
	"lockstep/internal/notify"
	"lockstep/internal/watch"
)

// Result is what is known of a result.
type Result struct {
	Entry   string           `json:"entry"`          // in the stream of results
	Cell    string           `json:"cell,omitempty"` // if there are several
	At      time.Time        `json:"at"`
	Result  events.Result    `json:"result"`
	Change  *events.Change   `json:"change,omitempty"`  // that it answers, as long as that is kept
	Webhook *intake.Received `json:"webhook,omitempty"` // that announced the change, as long as that is kept
	Posts   []notify.Post    `json:"notifications"`     // by the present watches
}

// Results are the results of a deployment.
type Results struct{ Cells *cells.Set }

// ErrNoResult means that there is no result with an ID.
var ErrNoResult = errors.New("no such result: its change is not settled, or it is not kept any more")

const resultsSearched = 25_000 // since the change that is answered, or the newest

// Get returns the result with an ID, with the webhook-id of its notification, or with an entry, its own or that of the
// change that it answers; if there are several, the first. It searches a limited number of results.
func (r *Results) Get(ctx context.Context, id string) (found Result, err error) {
	missing, err := Each(ctx, r.Cells, func(cell cells.Member) error {
		if found.Entry != "" {
			return nil
		}
		result, err := r.find(ctx, cell, id)
		if err != nil || result.Entry == "" {
			return err
		}
		result.Cell = Shown(r.Cells, cell)
		err = r.complete(ctx, cell, &result)
		found = result
		return err
	})
	if err == nil && found.Entry == "" {
		if err = Unanswered(missing); err == nil {
			err = fmt.Errorf("%w: %.100q", ErrNoResult, id)
		}
	}
	return found, err
}

// find returns the result of a cell, or one without entry.
func (r *Results) find(ctx context.Context, cell cells.Member, id string) (Result, error) {
	parts := strings.Split(id, "/") // an ID contains the entry of the change, after that of the change itself
	at := slices.IndexFunc(parts, func(part string) bool { _, _, ok := events.ParseEntryID(part); return ok })
	topic, reader := cell.Namespace.Results(), stream.NewReader(r.Cells.Redis())
	if strings.HasPrefix(id, "msg_") {
		watching := r.watching(ctx, cell)
		return first(reader.Backward(ctx, topic, "+", "-"), "", func(result events.Result) bool {
			return notify.IsID(id, result, watching(result))
		})
	}
	if at < 0 {
		return Result{}, nil
	}
	own, err := r.Cells.Redis().XRange(ctx, topic, parts[at], parts[at]).Result()
	if err != nil {
		return Result{}, fmt.Errorf("read result %s: %w", parts[at], err)
	}
	if len(parts) == 1 && len(own) == 1 {
		result, err := changes.ParseResult(own[0])
		return Result{Entry: id, Result: result}, err
	}
	since := strconv.FormatInt(events.EntryTime(parts[at]).UnixMilli(), 10)
	return first(reader.Forward(ctx, topic, since, "+"), parts[at], func(result events.Result) bool {
		return result.ID == id || result.Entry() == id
	})
}

// watching returns a function that returns the apps that watch the repository of a result, if that is for no app and apps
// are notified of it. It reads those of each repository once.
func (r *Results) watching(ctx context.Context, cell cells.Member) func(events.Result) []string {
	registry, known := watch.NewRegistry(r.Cells.Redis(), cell.Namespace), map[string][]string{}
	return func(result events.Result) []string {
		repo := watch.ConcernedRepo(result)
		apps, ok := known[repo.Key()]
		if result.App != "" || ok || !watch.Notable(result) {
			return apps
		}
		set, _ := registry.Of(ctx, repo) // what cannot be read does not match
		for _, w := range set.Watches {
			apps = append(apps, w.App)
		}
		known[repo.Key()] = apps
		return apps
	}
}

// first returns the first of a number of results that matches, among those with a text in their documents, or one without
// entry.
func first(results iter.Seq2[redis.XMessage, error], text string, matches func(events.Result) bool) (Result, error) {
	searched := 0
	for entry, err := range results {
		if searched++; err != nil || searched > resultsSearched {
			return Result{}, err
		}
		if payload, _ := entry.Values["payload"].(string); !strings.Contains(payload, text) { // saves decoding it
			continue
		}
		if result, err := changes.ParseResult(entry); err == nil && matches(result) {
			return Result{Entry: entry.ID, Result: result}, nil
		}
	}
	return Result{}, nil
}

// complete adds what other records say about a result.
func (r *Results) complete(ctx context.Context, cell cells.Member, result *Result) error {
	client, event := r.Cells.Redis(), result.Result
	result.At = events.EntryTime(result.Entry)
	entry := event.Entry()
	if _, _, ok := events.ParseEntryID(entry); ok {
		asked, err := client.XRange(ctx, cell.Namespace.Changes(), entry, entry).Result()
		if err != nil {
			return fmt.Errorf("read change %s: %w", entry, err)
		}
		for _, e := range asked {
			payload, _ := e.Values["payload"].(string)
			if change, err := events.ParseChange([]byte(payload)); err == nil {
				result.Change = &change
			}
		}
	}
	hooks, err := intake.Recent(ctx, client, cell.Namespace)
	if err != nil {
		return err
	}
	for i, hook := range hooks {
		if slices.ContainsFunc(event.Deliveries, func(id string) bool {
			return strings.HasPrefix(id, hook.Source+"/"+hook.Delivery+"/")
		}) {
			result.Webhook = &hooks[i]
		}
	}
	set, err := watch.NewRegistry(client, cell.Namespace).Of(ctx, watch.ConcernedRepo(event))
	if err != nil {
		return err
	}
	boxes := notify.Outboxes{Redis: client, Namespace: cell.Namespace}
	if result.Posts, err = boxes.Posts(ctx, event, result.Entry, set); err != nil {
		return err
	}
	letters, _, err := (&Letters{Cells: r.Cells}).OfRepo(ctx, LetterQuery{Repo: event.Repo, Limit: 1000})
	for i, post := range result.Posts {
		for _, l := range letters {
			if post.State == notify.PostEnded && l.App == post.App && l.Entry == result.Entry {
				result.Posts[i].State, result.Posts[i].At, result.Posts[i].Letter = notify.PostGivenUp, l.At, l.ID
			}
		}
	}
	return err
}
