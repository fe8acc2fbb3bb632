package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"lockstep/events"
	"lockstep/internal/operate"
)

// listDead lists letters, with their errors if admin permits it.
func listDead(letters *operate.Letters, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query, err := pagedDeadQuery(r)
		if err != nil {
			return nil, badRequest(err)
		}
		page, err := letters.Page(r.Context(), query)
		if !admin(r) {
			HideErrors(page.Letters)
		}
		return page, err
	})
}

// HideErrors removes the errors of letters, which name hosts and credentials.
func HideErrors(letters []operate.Letter) {
	for i := range letters {
		letters[i].Error = ""
	}
}

// retryDead retries complete letters that match, the oldest first. It wants a filter or ?all=true: a forgotten or
// misspelt filter must not mean all letters.
func retryDead(letters *operate.Letters) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query, err := pagedDeadQuery(r)
		if err != nil {
			return nil, badRequest(err)
		}
		if all := r.URL.Query().Get("all") == "true"; !all && query.Repo.IsZero() &&
			cmp.Or(query.Reason, query.Class, query.Host, query.App) == "" {
			return nil, badRequest(errors.New("want repo, reason, class, host or app, or all=true"))
		}
		query.Whole, query.Oldest, query.Limit = true, true, cmp.Or(query.Limit, 1000)
		found, more, missing, err := letters.List(r.Context(), query)
		if err != nil {
			return nil, err
		}
		done, err := letters.RetryAll(r.Context(), found)
		return struct {
			operate.RetriedLetters
			More    bool     `json:"more,omitempty"`
			Missing []string `json:"missing_cells,omitempty"`
		}{done, more, operate.Names(missing)}, err
	})
}

func pagedDeadQuery(r *http.Request) (query operate.LetterQuery, err error) {
	if query, err = DeadQuery(r.URL.Query()); err == nil {
		query.Limit, err = pageLimit(r)
	}
	return query, err
}

// DeadQuery parses ?repo=, ?reason=, ?class=, ?host=, ?app=, ?order=oldest and ?after=.
func DeadQuery(values url.Values) (query operate.LetterQuery, err error) {
	query = operate.LetterQuery{
		Reason: values.Get("reason"), Class: values.Get("class"), Host: strings.TrimSpace(values.Get("host")),
		App: strings.TrimSpace(values.Get("app")), After: values.Get("after"),
	}
	switch order := values.Get("order"); order {
	case "", "newest":
	case "oldest":
		query.Oldest = true
	default:
		return query, fmt.Errorf("order %.20q: want newest or oldest", order)
	}
	if text := strings.TrimSpace(values.Get("repo")); text != "" {
		query.Repo, err = events.ParseRepoPath(text)
	}
	return query, err
}

// oneDead answers a request about one letter, of ?cell= if there are several.
func oneDead[T any](act func(ctx context.Context, cell, id string) (T, error)) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		body, err := act(r.Context(), r.URL.Query().Get("cell"), r.PathValue("id"))
		if errors.Is(err, operate.ErrSeveralLetters) {
			err = fmt.Errorf("%w with ?cell=", err)
		}
		return body, err
	})
}
