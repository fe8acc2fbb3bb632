package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/operate"
)

// listDead lists letters, with their errors if admin permits it.
func listDead(letters *operate.Letters, admin func(*http.Request) bool) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		query, err := deadQuery(r)
		if err != nil {
			return nil, badRequest(err)
		}
		page, err := letters.Page(r.Context(), query)
		if !admin(r) {
			HideErrors(page.Letters)
		}
		return page, deadProblem(err)
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
		query, err := deadQuery(r)
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
			return nil, deadProblem(err)
		}
		done, err := letters.RetryAll(r.Context(), found)
		return struct {
			operate.RetriedLetters
			More    bool     `json:"more,omitempty"`
			Missing []string `json:"missing_cells,omitempty"`
		}{done, more, operate.Names(missing)}, err
	})
}

// deadQuery parses ?repo=, ?reason=, ?class=, ?host=, ?app=, ?order=oldest, ?limit= and ?after=.
func deadQuery(r *http.Request) (query operate.LetterQuery, err error) {
	values := r.URL.Query()
	query = operate.LetterQuery{
		Reason: values.Get("reason"), Class: values.Get("class"), Host: values.Get("host"), App: values.Get("app"),
		After: values.Get("after"),
	}
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
		query.Repo, err = events.ParseRepoPath(text)
	}
	return query, err
}

// oneDead answers a request about one letter, of ?cell= if there are several.
func oneDead[T any](act func(ctx context.Context, cell, id string) (T, error)) http.Handler {
	return answering(func(r *http.Request) (any, error) {
		body, err := act(r.Context(), r.URL.Query().Get("cell"), r.PathValue("id"))
		if err != nil && r.Method != http.MethodGet && DeadStatus(err) == http.StatusServiceUnavailable {
			return nil, problem{errors.New("Redis does not answer; check whether the letter is still there, then try again"),
				http.StatusServiceUnavailable} // the script may still have run
		}
		return body, deadProblem(err)
	})
}

func deadProblem(err error) error {
	if errors.Is(err, operate.ErrSeveralLetters) {
		err = fmt.Errorf("%w with ?cell=", err)
	}
	if status := DeadStatus(err); err != nil && status != http.StatusServiceUnavailable {
		return problem{err, status}
	}
	return err
}

// DeadStatus returns the HTTP status for an error about a dead letter: 503 unless the request or the letter
// is at fault.
func DeadStatus(err error) int {
	switch {
	case errors.Is(err, stream.ErrBadID):
		return http.StatusBadRequest
	case errors.Is(err, stream.ErrNoLetter):
		return http.StatusNotFound
	case errors.Is(err, stream.ErrNotRetryable), errors.Is(err, operate.ErrSeveralLetters):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}
