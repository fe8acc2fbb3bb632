package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
)

// Dead lists, retries and drops dead letters. [stream.DeadLetters] implements it.
type Dead interface {
	List(ctx context.Context, q stream.Query) (page []stream.Letter, next string, err error)
	Get(ctx context.Context, id string) (stream.Letter, error)
	Message(l stream.Letter) (*message.Message, error)
	Retry(ctx context.Context, id string) (topic, entry string, err error)
	Drop(ctx context.Context, ids ...string) (int, error)
}

// DeadCells has the dead letters of all cells.
type DeadCells interface {
	// List lists cell by cell, each in order. The cursor has the index of the cell in front.
	List(ctx context.Context, q stream.Query) (DeadPage, error)
	// Of returns the letters of a cell, or, if cell is "", those of the one that has a letter with that ID,
	// and its name. It returns [stream.ErrNoLetter] if there is no such cell, and [ErrSeveralLetters].
	Of(ctx context.Context, cell, id string) (Dead, string, error)
}

// DeadPage is a page of letters, all of one cell.
type DeadPage struct {
	Letters []stream.Letter
	Next    string // cursor for the next page; empty on the last
	Cell    string // name of the cell, if there are several
	Missing bool   // the cell does not answer
}

// ListDead returns a page of all, or of dead if that is nil.
func ListDead(ctx context.Context, dead Dead, all DeadCells, q stream.Query) (page DeadPage, err error) {
	if all != nil {
		return all.List(ctx, q)
	}
	page.Letters, page.Next, err = dead.List(ctx, q)
	return page, err
}

// ErrSeveralLetters means that IDs of letters, which are unique within a cell, are the same in several.
var ErrSeveralLetters = errors.New("several cells have a letter with this ID; name one of them, as in ?cell=eu-1")

// DeadLetter is a dead letter as shown by the API and the command line. For an unreadable entry it contains only the
// names and sizes of its fields, because their values may contain a password.
type DeadLetter struct {
	ID       string    `json:"id"`
	Cell     string    `json:"cell,omitempty"` // if there are several; not set by NewDeadLetter
	At       time.Time `json:"at"`
	Reason   string    `json:"reason"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`

	Repo string `json:"repo,omitempty"` // "" if the entry could not be read
	Type string `json:"type,omitempty"`
	App  string `json:"app,omitempty"`
	Ref  string `json:"ref,omitempty"`
	Job  string `json:"job,omitempty"` // ID of the change or result

	Stream   string `json:"stream"`
	Group    string `json:"group"`
	Consumer string `json:"consumer"`
	Entry    string `json:"entry"`

	Event     json.RawMessage `json:"event,omitempty"`     // the change or the result; only for a single letter
	Fields    map[string]int  `json:"fields,omitempty"`    // field sizes in bytes by name, if the entry could not be read
	Truncated string          `json:"truncated,omitempty"` // how much of the entry was kept, if truncated
}

// NewDeadLetter converts a letter of dead. It includes the event only if full is set.
func NewDeadLetter(dead Dead, l stream.Letter, full bool) DeadLetter {
	shown := DeadLetter{
		ID: l.ID, At: l.At, Reason: l.Reason, Error: l.Error, Attempts: l.Attempts, Truncated: l.Truncated,
		Stream: l.Stream, Group: l.Group, Consumer: l.Consumer, Entry: l.Entry,
	}
	event, ok := readEvent(dead, l)
	if !ok {
		shown.Fields = make(map[string]int, len(l.Original))
		for name, value := range l.Original {
			shown.Fields[name] = len(value)
		}
		return shown
	}
	shown.Repo, shown.Type, shown.App, shown.Ref, shown.Job = event.repo.String(), event.kind, event.app, event.ref,
		event.id
	if full {
		shown.Event, _ = json.Marshal(event.document) // cannot fail for a parsed event
	}
	return shown
}

// event is the change or the result in a letter's entry.
type event struct {
	document           json.Marshaler
	repo               events.RepoPath
	kind, app, ref, id string
}

func readEvent(dead Dead, l stream.Letter) (event, bool) {
	msg, err := dead.Message(l)
	if err != nil {
		return event{}, false
	}
	if c, err := events.ParseChange(msg.Payload); err == nil {
		c.ID = cmp.Or(c.ID, msg.UUID)
		return event{c, c.Repo, string(c.Type), c.App, c.Ref.String(), c.ID}, true
	}
	if r, err := events.ParseResult(msg.Payload); err == nil {
		return event{r, r.Repo, string(r.Type), r.App, r.Ref.String(), r.ID}, true
	}
	return event{}, false
}

// DeadOf returns a function that matches the letters of one repository. Unreadable entries match if their field repo
// is the repository's path, or any field contains the path in quotes.
func DeadOf(dead Dead, repo events.RepoPath) func(stream.Letter) bool {
	quoted := strconv.Quote(repo.Key())
	return func(l stream.Letter) bool {
		if event, ok := readEvent(dead, l); ok {
			return event.repo.Equal(repo)
		}
		for name, value := range l.Original {
			if name == "repo" && strings.EqualFold(value, repo.Key()) || strings.Contains(strings.ToLower(value), quoted) {
				return true
			}
		}
		return false
	}
}

func listDead(dead Dead, all DeadCells) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query, err := deadQuery(dead, r)
		if err != nil {
			return nil, badRequest(err)
		}
		page, err := ListDead(r.Context(), dead, all, query)
		if err != nil {
			return nil, deadProblem(err)
		}
		list := struct {
			Letters []DeadLetter `json:"letters"`
			Next    string       `json:"next,omitempty"`
			Missing string       `json:"missing_cell,omitempty"`
		}{Letters: make([]DeadLetter, len(page.Letters)), Next: page.Next}
		if page.Missing {
			list.Missing = page.Cell
		}
		for i, l := range page.Letters {
			list.Letters[i] = NewDeadLetter(dead, l, false)
			list.Letters[i].Cell = page.Cell
		}
		return list, nil
	})
}

// deadFor returns the dead letters that a request about one is for, and the name of their cell if there are several.
func deadFor(r *http.Request, dead Dead, all DeadCells) (Dead, string, error) {
	if all == nil {
		return dead, "", nil
	}
	return all.Of(r.Context(), r.URL.Query().Get("cell"), r.PathValue("id"))
}

// deadQuery parses ?repo=, ?reason=, ?order=oldest, ?limit= and ?after=.
func deadQuery(dead Dead, r *http.Request) (query stream.Query, err error) {
	values := r.URL.Query()
	query = stream.Query{Reason: values.Get("reason"), After: values.Get("after")}
	switch order := values.Get("order"); order {
	case "", "newest":
	case "oldest":
		query.Oldest = true
	default:
		return query, fmt.Errorf("order %.20q: want newest or oldest", order)
	}
	if query.Limit, err = pageLimit(r); err != nil {
		return query, err
	}
	if text := values.Get("repo"); text != "" {
		repo, err := events.ParseRepoPath(text)
		if err != nil {
			return query, err
		}
		query.Match = DeadOf(dead, repo)
	}
	return query, nil
}

func showDead(dead Dead, all DeadCells) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		dead, cell, err := deadFor(r, dead, all)
		if err != nil {
			return nil, deadProblem(err)
		}
		letter, err := dead.Get(r.Context(), r.PathValue("id"))
		if err != nil {
			return nil, deadProblem(err)
		}
		shown := NewDeadLetter(dead, letter, true)
		shown.Cell = cell
		return shown, nil
	})
}

func retryDead(dead Dead, all DeadCells) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		dead, _, err := deadFor(r, dead, all)
		if err != nil {
			return nil, deadProblem(err)
		}
		id := r.PathValue("id")
		topic, entry, err := dead.Retry(r.Context(), id)
		if err != nil {
			return nil, deadChangeProblem(err)
		}
		return DeadRetried{ID: id, Stream: topic, Entry: entry}, nil
	})
}

// DeadRetried is the outcome of retrying one letter.
type DeadRetried struct {
	ID     string `json:"id"`
	Stream string `json:"stream,omitempty"`
	Entry  string `json:"entry,omitempty"` // ID of the new entry
	Error  string `json:"error,omitempty"` // why the retry failed
}

func dropDead(dead Dead, all DeadCells) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		dead, _, err := deadFor(r, dead, all)
		if err != nil {
			return nil, deadProblem(err)
		}
		id := r.PathValue("id")
		n, err := dead.Drop(r.Context(), id)
		if err != nil {
			return nil, deadChangeProblem(err)
		}
		if n == 0 {
			return nil, deadChangeProblem(fmt.Errorf("%w: %s", stream.ErrNoLetter, id))
		}
		return map[string]string{"id": id}, nil
	})
}

func deadProblem(err error) error {
	if status := DeadStatus(err); status != http.StatusServiceUnavailable {
		return problem{errors.New(strings.TrimPrefix(err.Error(), "stream: ")), status}
	}
	return err
}

// deadChangeProblem is deadProblem for a request that retries or drops a letter. If Redis does not answer,
// the script may still have run.
func deadChangeProblem(err error) error {
	if DeadStatus(err) == http.StatusServiceUnavailable {
		return problem{errors.New("Redis does not answer; check whether the letter is still there, then try again"),
			http.StatusServiceUnavailable}
	}
	return deadProblem(err)
}

// DeadStatus returns the HTTP status for an error about a dead letter: 503 unless the request or the letter
// is at fault.
func DeadStatus(err error) int {
	switch {
	case errors.Is(err, stream.ErrBadID):
		return http.StatusBadRequest
	case errors.Is(err, stream.ErrNoLetter):
		return http.StatusNotFound
	case errors.Is(err, stream.ErrNotRetryable), errors.Is(err, ErrSeveralLetters):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}
