package dashboard

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"time"

	"lockstep/internal/redisx"
	"lockstep/internal/server"
)

type page struct {
	name, path, title string
	every             time.Duration // refresh interval
	expensive         bool          // limited number loaded concurrently
	params            []string      // query parameters
	parts             []string      // templates of the live parts
	load              func(ctx context.Context, q url.Values, admin bool) (any, error)
	template          *template.Template
}

type partData struct {
	Now   time.Time // zero in a part that is sent on its own: see [ago]
	Admin bool
	Query map[string]string
	Data  any // nil if it could not be loaded
}

type pageData struct {
	partData
	Page, Title string
	ParentTab   string        // tab that a page without its own tab belongs to
	Alert       template.HTML // why there is no data
	EventsURL   string        // stream of the page's live parts; "" for a static page
	Flash       string
	User        string
	Logout      bool
	CSRF        string
	LoginURL    string
	Tabs        []tab
	Version     string
}

// parentTabs maps pages without a tab to the tab that they belong to.
var parentTabs = map[string]string{"repo": "repos", "letter": "dead", "result": "results"}

type tab struct{ Name, Path, Title string }

var tabs = []tab{
	{"overview", "/", "Overview"},
	{"repos", "/dashboard/repos", "Repositories"},
	{"watches", "/dashboard/watches", "Watches"},
	{"webhooks", "/dashboard/webhooks", "Webhooks"},
	{"results", "/dashboard/results", "Results"},
	{"dead", "/dashboard/dead", "Dead letters"},
	{"outbox", "/dashboard/outbox", "Outbox"},
	{"workers", "/dashboard/workers", "Workers"},
	{"leases", "/dashboard/leases", "Leases"},
	{"hosts", "/dashboard/hosts", "Hosts"},
}

// parsePages returns all pages by name, each with its templates parsed.
func (d *Dashboard) parsePages() (map[string]*page, error) {
	base, err := template.New("").Option("missingkey=zero").Funcs(d.templateFuncs()).ParseFS(templates,
		"templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("dashboard: templates: %w", err)
	}
	pages := map[string]*page{}
	for _, p := range append(d.livePages(), &page{name: "login"}, &page{name: "letter"}, &page{name: "result"},
		&page{name: "confirm"}, &page{name: "failure"}) {
		p.template, err = template.Must(base.Clone()).ParseFS(templates, "templates/"+p.name+".html")
		if err != nil {
			return nil, fmt.Errorf("dashboard: templates: %w", err)
		}
		pages[p.name] = p
	}
	return pages, nil
}

func (d *Dashboard) show(name string) http.Handler {
	p := d.pages[name]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, query := d.access.visitor(r), p.query(r.URL.Query())
		data, err := d.hub.load(r.Context(), p, query, v.admin())
		if err != nil && server.StatusOf(err) != http.StatusServiceUnavailable {
			d.fail(w, r, err)
			return
		}
		s, status := d.pageData(w, r, v), http.StatusOK
		s.Page, s.Title, s.Data, s.Query = p.name, p.title, data, flat(query)
		if err != nil {
			d.cfg.Log.DebugContext(r.Context(), "dashboard page not loaded", "page", p.name, "error", err)
			s.Alert, status = alertFor(err, v.admin()), http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "5")
		}
		query.Set("page", p.name)
		s.EventsURL = "/dashboard/events?" + query.Encode()
		d.write(w, r, status, p, s)
	})
}

// Alerts shown while a page's data cannot be loaded.
const (
	unavailableText template.HTML = `<strong>Redis does not answer.</strong> The data shown may be outdated. Retrying.`
	invalidText     template.HTML = `<strong>Data in Redis could not be read.</strong> The data shown may be outdated.`
)

// alertFor returns the alert for a failed load. Only admins see the error's details.
func alertFor(err error, admin bool) template.HTML {
	text := template.HTML(template.HTMLEscapeString(clip(400, err.Error())))
	switch {
	case server.StatusOf(err) != http.StatusServiceUnavailable, errors.Is(err, errBusy):
		return text
	case redisx.Unavailable(err) || errors.Is(err, context.Canceled):
		if other, ok := errors.AsType[*cellError](err); ok {
			return template.HTML("<strong>Cell " + template.HTMLEscapeString(other.cell) +
				" does not answer.</strong> The data shown may be outdated. Retrying.")
		}
		return unavailableText
	case admin:
		return invalidText + " " + text
	}
	return invalidText
}

// answer serves a page that is not live.
func (d *Dashboard) answer(w http.ResponseWriter, r *http.Request, status int, name, title string, data any) {
	s := d.pageData(w, r, d.access.visitor(r))
	s.Page, s.Title, s.Data = name, title, data
	d.write(w, r, status, d.pages[name], s)
}

func (d *Dashboard) pageData(w http.ResponseWriter, r *http.Request, v visitor) pageData {
	next := r.URL.RequestURI()
	if r.Method == http.MethodPost { // a login cannot repeat the action, so return to its list instead
		next = path.Dir(r.URL.Path)
	}
	s := pageData{
		partData: partData{Now: time.Now(), Admin: v.admin()}, Flash: takeFlash(w, r), User: v.name, Logout: v.logout,
		LoginURL: loginURL(safeNext(next)), Tabs: tabs, Version: d.cfg.Version,
	}
	if v.binding != "" {
		s.CSRF = d.access.sessions.csrfToken(v.binding)
	}
	return s
}

func (d *Dashboard) write(w http.ResponseWriter, r *http.Request, status int, p *page, s pageData) {
	s.ParentTab = parentTabs[p.name]
	var b bytes.Buffer
	if err := p.template.ExecuteTemplate(&b, "layout", s); err != nil {
		d.cfg.Log.ErrorContext(r.Context(), "dashboard page not rendered", "page", p.name, "error", err)
		http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only if the browser has disconnected
}

// query keeps the parameters that the page supports, without oversized values.
func (p *page) query(given url.Values) url.Values {
	kept := url.Values{}
	for _, name := range p.params {
		if value := given.Get(name); value != "" && len(value) <= maxParam {
			kept.Set(name, value)
		}
	}
	return kept
}

const maxParam = 600 // bytes

func flat(query url.Values) map[string]string {
	m := map[string]string{}
	for name := range query {
		m[name] = query.Get(name)
	}
	return m
}

func badQuery(err error) error { return server.Problem(err, http.StatusBadRequest) }

type failure struct {
	Status int
	Error  string
}

// fail answers that a page or an action has failed.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := server.StatusOf(err)
	if status == http.StatusServiceUnavailable {
		d.cfg.Log.WarnContext(r.Context(), "dashboard request failed", "path", r.URL.Path, "error", err)
		err = server.Unavailable(r)
	}
	d.answer(w, r, status, "failure", http.StatusText(status), failure{status, clip(400, err.Error())})
}

// done reports an action on the page that follows it.
func (d *Dashboard) done(w http.ResponseWriter, r *http.Request, next, text string) {
	d.setFlash(w, text)
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (d *Dashboard) notFound(w http.ResponseWriter, r *http.Request) {
	d.fail(w, r, server.Problem(errors.New("no such page"), http.StatusNotFound))
}

// flashCookie holds a message about the last action for the next page. It is a cookie rather than a query parameter,
// so that links from other sites cannot make the dashboard show a message.
const flashCookie = "lockstep-note"

func (d *Dashboard) setFlash(w http.ResponseWriter, text string) {
	value := base64.RawURLEncoding.EncodeToString([]byte(clip(400, text)))
	http.SetCookie(w, &http.Cookie{
		Name: flashCookie, Value: value, Path: "/", MaxAge: 30, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// takeFlash returns the message left by the last action and deletes it, or "" if there is none.
func takeFlash(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(flashCookie)
	if err != nil || c.Value == "" {
		return ""
	}
	http.SetCookie(w, &http.Cookie{
		Name: flashCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	text, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return ""
	}
	return clip(400, string(text))
}
