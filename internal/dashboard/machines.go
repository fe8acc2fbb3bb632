package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/hosts"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/state"
)

// worker is a consumer of changes.
type worker struct {
	redis.XInfoConsumer
	Live  bool
	Heard time.Time // by this process's clock, to the second
	Busy  []state.Activity
	More  int // number of activities omitted from Busy
}

type workersPage struct {
	Workers     []worker
	MoreWorkers int
	Streams     []stream.Statistics
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
	busy, err := d.activities(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.cfg.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	live := func(c redis.XInfoConsumer) bool { return c.Idle < stream.LiveFor }
	slices.SortStableFunc(all, func(a, b redis.XInfoConsumer) int { // stable rows: not by the last heartbeat
		if live(a) != live(b) {
			return map[bool]int{true: -1, false: 1}[live(a)]
		}
		return cmp.Compare(a.Name, b.Name)
	})
	all, p.MoreWorkers = first(workersShown, all)
	now := time.Now()
	for _, c := range all {
		w := worker{XInfoConsumer: c, Live: live(c), Heard: now.Add(-c.Idle).Truncate(time.Second)}
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
	for i := range p.Boxes {
		if !admin {
			p.Boxes[i].Error = "" // names URLs and credentials
		}
	}
	return p, nil
}

// sendNow makes the notifications of an app due.
func (d *Dashboard) sendNow(w http.ResponseWriter, r *http.Request, v visitor) {
	app := strings.TrimSpace(r.PostForm.Get("app"))
	sent, err := d.cfg.Outboxes.Send(r.Context(), app)
	if err != nil {
		d.fail(w, r, http.StatusServiceUnavailable, errRedis)
		return
	}
	d.cfg.Log.InfoContext(r.Context(), "notifications sent now on the dashboard", "by", v.name, "app", app,
		"repos", sent.Repos)
	text := fmt.Sprintf("Due now: notifications to %s, repositories: %s.", app, count(sent.Repos))
	if len(sent.Missing) > 0 {
		text += " No answer from cell " + strings.Join(sent.Missing, ", ") + "."
	}
	d.setFlash(w, text)
	http.Redirect(w, r, link("/dashboard/outbox", "app", app), http.StatusSeeOther)
}
