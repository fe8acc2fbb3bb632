package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/state"
)

// worker is a consumer of changes.
type worker struct {
	operate.Worker
	Busy []state.Activity
	More int // number of activities omitted from Busy
}

type workersPage struct {
	Workers     []worker
	MoreWorkers int
	Streams     []stream.Statistics
	Missing     []string // cells that do not answer
}

const (
	workersShown  = 200
	activityShown = 10 // of a worker
	outboxesShown = 200
	appsShown     = 10 // with failing notifications, on the overview
)

// loadWorkers loads the workers, live ones first, and the consumer groups of all streams.
func (d *Dashboard) loadWorkers(ctx context.Context, _ url.Values, _ bool) (any, error) {
	p := workersPage{}
	var err error
	if p.Streams, err = d.cfg.Streams.Read(ctx); err != nil {
		return nil, err
	}
	busy, err := d.cfg.Activities(ctx)
	if err != nil {
		return nil, err
	}
	all, missing, err := d.cfg.Workers.List(ctx)
	if err != nil {
		return nil, err
	}
	p.Missing = operate.Names(missing)
	all, p.MoreWorkers = first(workersShown, all)
	for _, c := range all {
		w := worker{Worker: c}
		for _, a := range busy {
			if a.Worker == c.Name {
				w.Busy = append(w.Busy, a)
			}
		}
		w.Busy, w.More = first(activityShown, w.Busy)
		p.Workers = append(p.Workers, w)
	}
	return p, nil
}

// removeWorker removes a missing worker.
func (d *Dashboard) removeWorker(w http.ResponseWriter, r *http.Request, v visitor) {
	name := r.PostForm.Get("name")
	gone, err := d.cfg.Workers.Remove(r.Context(), r.PostForm.Get("cell"), name)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "missing worker removed on the dashboard", "by", v.name, "worker", name)
	d.done(w, r, "/dashboard/workers", fmt.Sprintf("Worker %s is removed.", gone.Name))
}

type hostsPage struct{ Hosts []hosts.Host }

// loadHosts loads all hosts used within a day, limited ones first.
func (d *Dashboard) loadHosts(ctx context.Context, _ url.Values, _ bool) (any, error) {
	all, err := d.cfg.Hosts.List(ctx)
	return hostsPage{all}, err
}

type outboxPage struct {
	Apps    []notify.App
	Total   int64
	App     string // whose boxes are shown; "" for none
	Boxes   []notify.Box
	More    bool     // there are more boxes
	Missing []string // cells that do not answer
}

// loadOutbox loads what waits for each app, and the repositories of the one that is chosen.
func (d *Dashboard) loadOutbox(ctx context.Context, q url.Values, admin bool) (any, error) {
	p := outboxPage{App: q.Get("app")}
	apps, missing, err := d.cfg.Outboxes.Apps(ctx)
	if err != nil {
		return nil, err
	}
	p.Apps, p.Missing = apps, operate.Names(missing)
	for _, a := range p.Apps {
		p.Total += a.Items
	}
	if p.App == "" && len(p.Apps) == 1 {
		p.App = p.Apps[0].Name
	}
	if p.App != "" {
		if p.Boxes, p.More, _, err = d.cfg.Outboxes.Of(ctx, p.App, outboxesShown); err != nil {
			return nil, err
		}
	}
	if !admin {
		hideBoxErrors(p.Boxes)
	}
	return p, nil
}

// hideBoxErrors removes the errors of notifications, which name URLs and credentials.
func hideBoxErrors(boxes []notify.Box) {
	for i := range boxes {
		boxes[i].Error = ""
	}
}

// sendNow makes the notifications of an app due.
func (d *Dashboard) sendNow(w http.ResponseWriter, r *http.Request, v visitor) {
	app := strings.TrimSpace(r.PostForm.Get("app"))
	sent, err := d.cfg.Outboxes.Send(r.Context(), app)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "notifications sent now on the dashboard", "by", v.name, "app", app,
		"repos", sent.Repos)
	text := fmt.Sprintf("Due now: notifications to %s, repositories: %s.", app, count(sent.Repos))
	if len(sent.Missing) > 0 {
		text += " No answer from cell " + strings.Join(sent.Missing, ", ") + "."
	}
	d.done(w, r, link("/dashboard/outbox", "app", app), text)
}
