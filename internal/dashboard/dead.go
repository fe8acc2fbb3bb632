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
	Next    string // cursor of the next page; "" on the last one
	Oldest  bool   // sorted oldest first
	Total   int64  // letters, also those that do not match; -1 if unknown
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
	page, err := d.cfg.Dead.List(ctx, query)
	if errors.Is(err, stream.ErrBadID) {
		return nil, fmt.Errorf("%w: %w", errBadQuery, err)
	}
	if err != nil {
		return nil, err
	}
	shown := deadPage{Next: page.Next, Oldest: query.Oldest, Total: -1}
	if streams, err := d.cfg.Streams.Read(ctx); err == nil && len(streams) > 0 {
		shown.Total = streams[0].Dead
	}
	for _, l := range page.Letters {
		shown.Letters = append(shown.Letters, server.NewDeadLetter(d.cfg.Dead, l, false))
	}
	return shown, nil
}

// deadQuery parses the filters by repository, reason and app.
func (d *Dashboard) deadQuery(q url.Values) (stream.Query, error) {
	query := stream.Query{Reason: q.Get("reason"), After: q.Get("after"), Oldest: q.Get("order") == "oldest", Limit: lettersShown}
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

func (d *Dashboard) showLetter(w http.ResponseWriter, r *http.Request, _ visitor) {
	letter, err := d.cfg.Dead.Get(r.Context(), r.URL.Query().Get("id"))
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	shown := letterPage{DeadLetter: server.NewDeadLetter(d.cfg.Dead, letter, true)}
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
	done, err := d.cfg.Dead.Retry(r.Context(), id)
	if err == nil {
		err = done[0].Err
	}
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "dead letter retried on the dashboard", "by", v.name, "letter", id, "stream", done[0].Stream, "entry", done[0].Entry)
	d.setFlash(w, fmt.Sprintf("Dead letter %s is back in its stream, as entry %s.", id, done[0].Entry))
	http.Redirect(w, r, deadListURL(r), http.StatusSeeOther)
}

func (d *Dashboard) confirmDrop(w http.ResponseWriter, r *http.Request, _ visitor) {
	letter, err := d.cfg.Dead.Get(r.Context(), r.URL.Query().Get("id"))
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	l := server.NewDeadLetter(d.cfg.Dead, letter, false)
	d.answer(w, r, http.StatusOK, "confirm", "Drop dead letter "+l.ID+"?", confirmation{
		Action: "/dashboard/dead/drop", Back: "/dashboard/dead", Button: "Drop the letter", Fields: [][2]string{{"id", l.ID}},
		Facts: [][2]string{
			{"Letter", l.ID}, {"Repository", clip(300, cmp.Or(l.Repo, "unknown"))}, {"Reason", clip(100, l.Reason)}, {"Error", clip(400, l.Error)},
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
	n, err := d.cfg.Dead.Drop(r.Context(), id)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: %s", stream.ErrNoLetter, id)
	}
	if err != nil {
		d.failDead(w, r, err)
		return
	}
	d.cfg.Log.WarnContext(r.Context(), "dead letter dropped on the dashboard", "by", v.name, "letter", id)
	d.setFlash(w, fmt.Sprintf("Dead letter %s is dropped.", id))
	http.Redirect(w, r, deadListURL(r), http.StatusSeeOther)
}

func (d *Dashboard) failDead(w http.ResponseWriter, r *http.Request, err error) {
	status := server.DeadStatus(err)
	if status == http.StatusServiceUnavailable {
		err = errRedis
	}
	d.fail(w, r, status, errors.New(clip(400, strings.TrimPrefix(err.Error(), "stream: "))))
}
