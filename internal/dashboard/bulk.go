package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep/internal/operate"
	"lockstep/internal/server"
)

const (
	bulkLetters = 1000             // retried by one request
	bulkTimeout = 20 * time.Second // of one request
)

// deadFilters are the parameters that select the letters of a bulk retry.
var deadFilters = []string{"repo", "reason", "class", "host", "app"}

func filtersOf(given url.Values) (kept url.Values) {
	return (&page{params: deadFilters}).query(given)
}

// findLetters returns the oldest letters that match and are complete, as many as it has time to read, whether there are
// more, and the names of the cells that do not answer.
func (d *Dashboard) findLetters(
	ctx context.Context, filters url.Values,
) (found []operate.Letter, more bool, missing string, err error) {
	query, err := server.DeadQuery(filters)
	if err != nil {
		return nil, false, "", badQuery(err)
	}
	query.Whole, query.Oldest, query.Limit = true, true, bulkLetters
	found, more, away, err := d.cfg.Letters.List(ctx, query)
	if ctx.Err() != nil { // which a cell seems not to answer then
		if more, away, err = true, nil, nil; len(found) == 0 {
			err = ctx.Err()
		}
	}
	return found, more, strings.Join(operate.Names(away), ", "), err
}

// confirmRetryAll asks before all letters that match are retried.
func (d *Dashboard) confirmRetryAll(w http.ResponseWriter, r *http.Request, _ visitor) {
	filters := filtersOf(r.URL.Query())
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	found, more, missing, err := d.findLetters(ctx, filters)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	number := count(len(found))
	if more {
		number = "the first " + number
	}
	c := confirmation{
		Action: "/dashboard/dead/retry-all", Back: deadURL(filters), Button: "Retry them",
		Facts: [][2]string{{"Letters", number}},
		Warning: "Each letter goes back into its stream as a new entry, and becomes a dead letter again if its cause " +
			"is not fixed. Letters that are incomplete stay.",
	}
	if missing != "" {
		c.Facts = append(c.Facts, [2]string{"Without", "cell " + missing + ", no answer"})
	}
	for _, name := range deadFilters {
		if value := filters.Get(name); value != "" {
			c.Fields = append(c.Fields, [2]string{name, value})
			c.Facts = append(c.Facts, [2]string{"Only of this " + name, clip(200, value)})
		}
	}
	d.answer(w, r, http.StatusOK, "confirm", "Retry "+number+" dead letters?", c)
}

// retryAll retries the letters that match, the oldest first. Letters that fail again meanwhile are newer, and
// not retried twice.
func (d *Dashboard) retryAll(w http.ResponseWriter, r *http.Request, v visitor) {
	filters := filtersOf(r.PostForm)
	ctx, cancel := context.WithTimeout(r.Context(), bulkTimeout)
	defer cancel()
	found, more, missing, err := d.findLetters(ctx, filters)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	outcome, err := d.cfg.Letters.RetryAll(ctx, found)
	done, kept := len(outcome.Retried), 0
	for _, letter := range outcome.Refused {
		if !letter.Gone {
			kept++
		}
	}
	d.cfg.Log.InfoContext(r.Context(), "dead letters retried on the dashboard", "by", v.name, "letters", done,
		"kept", kept, "filters", filters.Encode(), "error", err)
	text := count(done) + " dead letters are back in their streams."
	if kept > 0 {
		text += fmt.Sprintf(" %s cannot be retried.", count(kept))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text += " There was no time for the rest: repeat to continue."
	case err != nil:
		text += " Others could not be retried: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	case more:
		text += " There are more: repeat to continue."
	case missing != "":
		text += " No answer from cell " + missing + "."
	}
	d.done(w, r, deadURL(filters), text)
}

// deadURL returns the URL of the dead letters with the filters.
func deadURL(filters url.Values) string {
	return keep("/dashboard/dead", flat(filters))
}
