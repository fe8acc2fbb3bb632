package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/server"
)

type deadPage struct {
	Letters []server.DeadLetter
	Next    string   // cursor of the next page; "" on the last one
	Oldest  bool     // sorted oldest first, within each cell
	Total   int64    // letters, also those that do not match; -1 if unknown
	Cells   bool     // the letters are those of several cells, one cell after the other
	Missing []string // cells that do not answer
}

const (
	lettersShown = 50
	payloadShown = 64 << 10 // bytes
)

// loadDead loads a page of dead letters, without their payloads.
func (d *Dashboard) loadDead(ctx context.Context, q url.Values, _ bool) (any, error) {
	query, err := d.deadQuery(q)
	if err != nil {
		return nil, err
	}
	found, err := d.listLetters(ctx, query)
	if errors.Is(err, stream.ErrBadID) {
		return nil, fmt.Errorf("%w: %w", errBadQuery, err)
	}
	if err != nil {
		return nil, err
	}
	shown := deadPage{
		Next: found.next, Oldest: query.Oldest, Total: -1, Cells: d.cfg.DeadCells != nil, Missing: found.missing,
	}
	if !shown.Cells {
		if streams, err := d.cfg.Streams.Read(ctx); err == nil && len(streams) > 0 {
			shown.Total = streams[0].Dead
		}
	}
	for _, l := range found.letters {
		line := server.NewDeadLetter(d.cfg.Dead, l.Letter, false)
		line.Cell = l.cell
		shown.Letters = append(shown.Letters, line)
	}
	return shown, nil
}

// cellLetter is a letter of a cell, which is "" without cells.
type cellLetter struct {
	stream.Letter
	cell string
}

type letterList struct {
	letters []cellLetter
	next    string   // cursor of the next ones; "" if there are none
	missing []string // cells that do not answer
}

// listLetters lists letters: with several cells, those of one after the other.
func (d *Dashboard) listLetters(ctx context.Context, query stream.Query) (list letterList, err error) {
	pages := 1
	if d.cfg.DeadCells != nil {
		pages = cellPages
	}
	for limit := query.Limit; pages > 0; pages-- {
		page, err := server.ListDead(ctx, d.cfg.Dead, d.cfg.DeadCells, query)
		if err != nil {
			return letterList{}, err
		}
		if page.Missing {
			list.missing = append(list.missing, page.Cell)
		}
		for _, l := range page.Letters {
			list.letters = append(list.letters, cellLetter{l, page.Cell})
		}
		list.next, query.After, query.Limit = page.Next, page.Next, limit-len(list.letters)
		if page.Next == "" || query.Limit <= 0 {
			break
		}
	}
	return list, nil
}

// lettersOf returns the dead letters of a cell, or, if cell is "", those of the one that has a letter with
// the ID, and its name.
func (d *Dashboard) lettersOf(ctx context.Context, cell, id string) (server.Dead, string, error) {
	if d.cfg.DeadCells == nil {
		return d.cfg.Dead, "", nil
	}
	return d.cfg.DeadCells.Of(ctx, cell, id)
}

// deadQuery parses the filters by repository, reason and app.
func (d *Dashboard) deadQuery(q url.Values) (stream.Query, error) {
	query := stream.Query{
		Reason: q.Get("reason"), After: q.Get("after"), Oldest: q.Get("order") == "oldest", Limit: lettersShown,
	}
	app := strings.TrimSpace(q.Get("app"))
	ofApp := func(l stream.Letter) bool { return server.NewDeadLetter(d.cfg.Dead, l, false).App == app }
	if app != "" {
		query.Match = ofApp
	}
	if text := strings.TrimSpace(q.Get("repo")); text != "" {
		repo, err := events.ParseRepoPath(text)
		if err != nil {
			return stream.Query{}, fmt.Errorf("%w: %w", errBadQuery, err)
		}
		ofRepo := server.DeadOf(d.cfg.Dead, repo)
		query.Match = func(l stream.Letter) bool { return ofRepo(l) && (app == "" || ofApp(l)) }
	}
	return query, nil
}

type letterPage struct {
	server.DeadLetter
	Payload string // the event as indented JSON
	Cut     bool   // Payload is truncated
	Sizes   []fieldSize
	More    int // number of fields omitted from Sizes
}

// fieldSize is the size of one field of an unreadable entry.
type fieldSize struct {
	Name  string
	Bytes int
}

const fieldsShown = 100

// requestedLetter returns the letter that the parameters id and cell name.
func (d *Dashboard) requestedLetter(r *http.Request, full bool) (server.DeadLetter, error) {
	dead, cell, err := d.lettersOf(r.Context(), r.FormValue("cell"), r.FormValue("id"))
	if err != nil {
		return server.DeadLetter{}, err
	}
	letter, err := dead.Get(r.Context(), r.FormValue("id"))
	if err != nil {
		return server.DeadLetter{}, err
	}
	shown := server.NewDeadLetter(dead, letter, full)
	shown.Cell = cell
	return shown, nil
}

func (d *Dashboard) showLetter(w http.ResponseWriter, r *http.Request, _ visitor) {
	letter, err := d.requestedLetter(r, true)
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	shown := letterPage{DeadLetter: letter}
	var b bytes.Buffer
	if json.Indent(&b, shown.Event, "", "  ") == nil {
		shown.Payload = b.String()
	}
	if len(shown.Payload) > payloadShown {
		shown.Payload, shown.Cut = strings.ToValidUTF8(shown.Payload[:payloadShown], ""), true
	}
	shown.Payload = sanitize(strings.ToValidUTF8(shown.Payload, "\uFFFD"), "\n")
	for _, name := range slices.Sorted(maps.Keys(shown.Fields)) {
		shown.Sizes = append(shown.Sizes, fieldSize{name, shown.Fields[name]})
	}
	shown.Sizes, shown.More = first(fieldsShown, shown.Sizes)
	d.answer(w, r, http.StatusOK, "letter", "Dead letter "+shown.ID, shown)
}

func (d *Dashboard) retry(w http.ResponseWriter, r *http.Request, v visitor) {
	id := r.PostForm.Get("id")
	topic, entry, err := d.retryLetter(r.Context(), r.FormValue("cell"), id)
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "dead letter retried on the dashboard", "by", v.name, "letter", id,
		"stream", topic, "entry", entry)
	d.setFlash(w, fmt.Sprintf("Dead letter %s is back in its stream, as entry %s.", id, entry))
	http.Redirect(w, r, deadListURL(r), http.StatusSeeOther)
}

// retryLetter retries a letter of a cell, which may be "".
func (d *Dashboard) retryLetter(ctx context.Context, cell, id string) (topic, entry string, err error) {
	dead, _, err := d.lettersOf(ctx, cell, id)
	if err != nil {
		return "", "", err
	}
	return dead.Retry(ctx, id)
}

func (d *Dashboard) confirmDrop(w http.ResponseWriter, r *http.Request, _ visitor) {
	l, err := d.requestedLetter(r, false)
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	d.answer(w, r, http.StatusOK, "confirm", "Drop dead letter "+l.ID+"?", confirmation{
		Action: "/dashboard/dead/drop", Back: "/dashboard/dead", Button: "Drop the letter",
		Fields: [][2]string{{"id", l.ID}, {"cell", l.Cell}},
		Facts: [][2]string{
			{"Letter", l.ID}, {"Repository", clip(300, cmp.Or(l.Repo, "unknown"))}, {"Reason", clip(100, l.Reason)},
			{"Error", clip(400, l.Error)},
		},
		Warning: "The letter and its payload are deleted permanently. The repository itself is not affected.",
	})
}

// deadListURL returns the URL of the dead-letter list that the form was submitted from, including its filter.
func deadListURL(r *http.Request) string {
	const list = "/dashboard/dead"
	if u, err := url.Parse(r.Referer()); err == nil && u.Path == list {
		return safeNext(u.RequestURI())
	}
	return list
}

func (d *Dashboard) drop(w http.ResponseWriter, r *http.Request, v visitor) {
	id := r.PostForm.Get("id")
	if err := d.dropLetter(r.Context(), r.FormValue("cell"), id); err != nil {
		d.failDead(w, r, err)
		return
	}
	d.cfg.Log.WarnContext(r.Context(), "dead letter dropped on the dashboard", "by", v.name, "letter", id)
	d.setFlash(w, fmt.Sprintf("Dead letter %s is dropped.", id))
	http.Redirect(w, r, deadListURL(r), http.StatusSeeOther)
}

func (d *Dashboard) dropLetter(ctx context.Context, cell, id string) error {
	dead, _, err := d.lettersOf(ctx, cell, id)
	if err != nil {
		return err
	}
	n, err := dead.Drop(ctx, id)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
	}
	return nil
}

func (d *Dashboard) failDead(w http.ResponseWriter, r *http.Request, err error) {
	status := server.DeadStatus(err)
	if status == http.StatusServiceUnavailable {
		err = errRedis
	}
	d.fail(w, r, status, errors.New(clip(400, strings.TrimPrefix(err.Error(), "stream: "))))
}
