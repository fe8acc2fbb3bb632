package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"lockstep/internal/operate"
	"lockstep/internal/server"
)

type deadPage struct {
	Letters []operate.Letter
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

// loadDead loads a page of dead letters, without their payloads: with several cells, those of one after the other.
func (d *Dashboard) loadDead(ctx context.Context, q url.Values, admin bool) (any, error) {
	query, err := server.DeadQuery(q)
	if err != nil {
		return nil, badQuery(err)
	}
	shown := deadPage{Oldest: query.Oldest, Total: -1, Cells: !d.cfg.Letters.Cells.IsSingle()}
	shown.Letters, shown.Next, shown.Missing, err = fill(d.cfg.Letters.Cells, q.Get("after"), lettersShown, func(
		after string, limit int,
	) ([]operate.Letter, string, string, error) {
		query.After, query.Limit = after, limit
		page, err := d.cfg.Letters.Page(ctx, query)
		return page.Letters, page.Next, page.Missing, err
	})
	if err != nil {
		return nil, err
	}
	if !admin {
		server.HideErrors(shown.Letters)
	}
	if !shown.Cells {
		if streams, err := d.cfg.Streams.Read(ctx); err == nil && len(streams) > 0 {
			shown.Total = streams[0].Dead
		}
	}
	return shown, nil
}

type letterPage struct {
	operate.Letter
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

func (d *Dashboard) showLetter(w http.ResponseWriter, r *http.Request, _ visitor) {
	letter, err := d.cfg.Letters.Get(r.Context(), r.FormValue("cell"), r.FormValue("id"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	shown := letterPage{Letter: letter}
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
	done, err := d.cfg.Letters.Retry(r.Context(), r.FormValue("cell"), id)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "dead letter retried on the dashboard", "by", v.name, "letter", id,
		"stream", done.Stream, "entry", done.Entry)
	d.done(w, r, deadListURL(r), fmt.Sprintf("Dead letter %s is back in its stream, as entry %s.", id, done.Entry))
}

func (d *Dashboard) confirmDrop(w http.ResponseWriter, r *http.Request, _ visitor) {
	l, err := d.cfg.Letters.Get(r.Context(), r.FormValue("cell"), r.FormValue("id"))
	if err != nil {
		d.fail(w, r, err)
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
	if _, err := d.cfg.Letters.Drop(r.Context(), r.FormValue("cell"), id); err != nil {
		d.fail(w, r, err)
		return
	}
	d.cfg.Log.WarnContext(r.Context(), "dead letter dropped on the dashboard", "by", v.name, "letter", id)
	d.done(w, r, deadListURL(r), fmt.Sprintf("Dead letter %s is dropped.", id))
}
