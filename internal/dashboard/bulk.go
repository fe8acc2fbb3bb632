package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep/events/stream"
)

const (
	bulkLetters = 1000             // retried by one request
	bulkTimeout = 20 * time.Second // of one request
)

// deadFilters are the parameters that select the letters of a bulk retry.
var deadFilters = []string{"repo", "reason", "app"}

func filtersOf(given url.Values) (kept url.Values) {
	return (&page{params: deadFilters}).query(given)
}

// findLetters returns the oldest letters that match and are complete, and the cursor of the next ones. It
// reads as many pages as it has time for.
func (d *Dashboard) findLetters(ctx context.Context, filters url.Values) (found letterList, err error) {
	query, err := d.deadQuery(filters)
	if err != nil {
		return found, err
	}
	matches := query.Match
	query.Match = func(l stream.Letter) bool {
		return l.Truncated == "" && len(l.Original) > 0 && (matches == nil || matches(l))
	}
	for query.Oldest = true; ; query.After = found.next {
		query.Limit = bulkLetters - len(found.letters)
		page, err := d.listLetters(ctx, query)
		if err != nil && ctx.Err() != nil && len(found.letters) > 0 {
			return found, nil
		}
		if err != nil {
			return letterList{}, err
		}
		found.letters, found.next = append(found.letters, page.letters...), page.next
		found.missing = append(found.missing, page.missing...)
		if page.next == "" || len(found.letters) >= bulkLetters {
			return found, nil
		}
	}
}

// failBulk answers a bulk retry that found no letters.
func (d *Dashboard) failBulk(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errBadQuery) {
		d.fail(w, r, http.StatusBadRequest, err)
		return
	}
	d.failDead(w, r, err)
}

// confirmRetryAll asks before all letters that match are retried.
func (d *Dashboard) confirmRetryAll(w http.ResponseWriter, r *http.Request, _ visitor) {
	filters := filtersOf(r.URL.Query())
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	found, err := d.findLetters(ctx, filters)
	if err != nil {
		d.failBulk(w, r, err)
		return
	}
	number := count(len(found.letters))
	if found.next != "" {
		number = "the first " + number
	}
	c := confirmation{
		Action: "/dashboard/dead/retry-all", Back: deadURL(filters), Button: "Retry them",
		Facts: [][2]string{{"Letters", number}},
		Warning: "Each letter goes back into its stream as a new entry, and becomes a dead letter again if its cause " +
			"is not fixed. Letters that are incomplete stay.",
	}
	if len(found.missing) > 0 {
		c.Facts = append(c.Facts, [2]string{"Without", "cell " + strings.Join(found.missing, ", ") + ", no answer"})
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
	found, err := d.findLetters(ctx, filters)
	if err != nil {
		d.failBulk(w, r, err)
		return
	}
	done, kept, err := d.retryLetters(ctx, found.letters)
	d.cfg.Log.InfoContext(r.Context(), "dead letters retried on the dashboard", "by", v.name, "letters", done,
		"kept", kept,
		"repo", filters.Get("repo"), "reason", filters.Get("reason"), "app", filters.Get("app"), "error", err)
	text := count(done) + " dead letters are back in their streams."
	if kept > 0 {
		text += fmt.Sprintf(" %s cannot be retried.", count(kept))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text += " There was no time for the rest: repeat to continue."
	case err != nil:
		text += " The rest could not be retried: " + err.Error()
	case found.next != "":
		text += " There are more: repeat to continue."
	case len(found.missing) > 0:
		text += " No answer from cell " + strings.Join(found.missing, ", ") + "."
	}
	d.setFlash(w, text)
	http.Redirect(w, r, deadURL(filters), http.StatusSeeOther)
}

// retryLetters retries letters, and returns how many are back in their streams and how many cannot be.
func (d *Dashboard) retryLetters(ctx context.Context, letters []cellLetter) (done, kept int, err error) {
	for _, l := range letters {
		_, _, err := d.retryLetter(ctx, l.cell, l.ID)
		switch {
		case err == nil:
			done++
		case errors.Is(err, stream.ErrNotRetryable):
			kept++
		case errors.Is(err, stream.ErrNoLetter): // retried or dropped meanwhile
		default:
			return done, kept, err
		}
	}
	return done, kept, nil
}

// deadURL returns the URL of the dead letters with the filters.
func deadURL(filters url.Values) string {
	return link("/dashboard/dead", "repo", filters.Get("repo"), "reason", filters.Get("reason"), "app", filters.Get("app"))
}
