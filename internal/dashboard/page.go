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
)

// page is one of the dashboard's pages.
type page struct {
	name, path, title string
	every             time.Duration // between two reads while somebody looks
	dear              bool          // to read: not many at once
	params            []string      // of its query
	parts             []string      // templates of what is live in it
	load              func(ctx context.Context, q url.Values, admin bool) (any, error)
	template          *template.Template
}

// frame is what a page's templates are given.
type frame struct {
	Now   time.Time // zero in a part that is sent on its own: see [ago]
	Admin bool
	Query map[string]string
	Data  any // nil when it could not be read
}

// shell is what the frame of all pages is given.
type shell struct {
	frame
	Page, Title string
	Under       string        // the tab that the page belongs to
	Down        template.HTML // why there is no data
	Live        string        // where its parts come from as they change; "" for a page that is not live
	Note        string
	Name        string // of the visitor
	Logout      bool
	CSRF        string
	Here        string // of the login's way back
	Tabs        []tab
	Version     string
}

// under is the tab that a page belongs to which is none itself.
var under = map[string]string{"repo": "repos", "letter": "dead"}

type tab struct{ Name, Path, Title string }

var tabs = []tab{
	{"overview", "/", "Overview"},
	{"leases", "/dashboard/leases", "Leases"},
	{"dead", "/dashboard/dead", "Dead letters"},
	{"repos", "/dashboard/repos", "Repositories"},
	{"watches", "/dashboard/watches", "Watches"},
}

// parsePages reads all templates: each page's with the frame of all, and those that are no page of their own.
func (d *Dashboard) parsePages() (map[string]*page, error) {
	base, err := template.New("").Option("missingkey=zero").Funcs(words(d.assets)).ParseFS(templates, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("dashboard: templates: %w", err)
	}
	pages := map[string]*page{}
	for _, p := range append(d.live(), &page{name: "login"}, &page{name: "letter"}, &page{name: "confirm"}, &page{name: "failure"}) {
		p.template, err = template.Must(base.Clone()).ParseFS(templates, "templates/"+p.name+".html")
		if err != nil {
			return nil, fmt.Errorf("dashboard: templates: %w", err)
		}
		pages[p.name] = p
	}
	return pages, nil
}

// show answers with a live page.
func (d *Dashboard) show(name string) http.Handler {
	p := d.pages[name]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, query := d.access.visitor(r), p.query(r.URL.Query())
		data, err := d.hub.load(r.Context(), p, query, v.admin())
		if errors.Is(err, errBadQuery) {
			d.fail(w, r, http.StatusBadRequest, err)
			return
		}
		if errors.Is(err, errNotThere) {
			d.fail(w, r, http.StatusNotFound, err)
			return
		}
		s, status := d.shell(w, r, v), http.StatusOK
		s.Page, s.Title, s.Data, s.Query = p.name, p.title, data, flat(query)
		if err != nil {
			d.cfg.Log.DebugContext(r.Context(), "dashboard cannot read", "page", p.name, "error", err)
			s.Down, status = downFor(err, v.admin()), http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "5")
		}
		query.Set("page", p.name)
		s.Live = "/dashboard/events?" + query.Encode()
		d.write(w, r, status, p, s)
	})
}

// What is shown while a page cannot be read.
const (
	downText   template.HTML = `<strong>Redis does not answer.</strong> What is shown may be old. It is tried again all the time.`
	spoiltText template.HTML = `<strong>What Redis has could not be read.</strong> What is shown may be old.`
)

// downFor is why a page cannot be read now. What it was that could not be read is not for everybody.
func downFor(err error, admin bool) template.HTML {
	why := template.HTML(template.HTMLEscapeString(clip(400, err.Error())))
	switch {
	case errors.Is(err, errBadQuery) || errors.Is(err, errNotThere) || errors.Is(err, errBusy):
		return why
	case redisx.Unavailable(err) || errors.Is(err, context.Canceled):
		return downText
	case admin:
		return spoiltText + " " + why
	}
	return spoiltText
}

// answer answers with a page that is not live.
func (d *Dashboard) answer(w http.ResponseWriter, r *http.Request, status int, name, title string, data any) {
	s := d.shell(w, r, d.access.visitor(r))
	s.Page, s.Title, s.Data = name, title, data
	d.write(w, r, status, d.pages[name], s)
}

func (d *Dashboard) shell(w http.ResponseWriter, r *http.Request, v visitor) shell {
	here := r.URL.RequestURI()
	if r.Method == http.MethodPost { // which a login does not lead back to, but to the list of what was to be changed
		here = path.Dir(r.URL.Path)
	}
	s := shell{
		frame: frame{Now: time.Now(), Admin: v.admin()}, Note: takeNote(w, r), Name: v.name, Logout: v.logout, Here: loginURL(safeNext(here)),
		Tabs: tabs, Version: d.cfg.Version,
	}
	if v.proof != "" {
		s.CSRF = d.access.sessions.proof(v.proof)
	}
	return s
}

func (d *Dashboard) write(w http.ResponseWriter, r *http.Request, status int, p *page, s shell) {
	s.Under = under[p.name]
	var b bytes.Buffer
	if err := p.template.ExecuteTemplate(&b, "layout", s); err != nil {
		d.cfg.Log.ErrorContext(r.Context(), "dashboard page not rendered", "page", p.name, "error", err)
		http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // to a browser that may have gone
}

// query keeps what the page knows of a query, in bounds.
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

var (
	errBadQuery = errors.New("nothing can be found so")
	errNotThere = errors.New("there is no such thing, or not any more")
)

// failure is shown instead of a page.
type failure struct {
	Status int
	Error  string
}

func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	d.answer(w, r, status, "failure", http.StatusText(status), failure{status, err.Error()})
}

func (d *Dashboard) notFound(w http.ResponseWriter, r *http.Request) {
	d.fail(w, r, http.StatusNotFound, errors.New("there is no such page"))
}

// The note is what the next page says of what was done. It is a cookie, for a link from elsewhere must not put words
// into our mouth.
const noteCookie = "lockstep-note"

func (d *Dashboard) note(w http.ResponseWriter, text string) {
	value := base64.RawURLEncoding.EncodeToString([]byte(clip(400, text)))
	http.SetCookie(w, &http.Cookie{Name: noteCookie, Value: value, Path: "/", MaxAge: 30, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

func takeNote(w http.ResponseWriter, r *http.Request) string {
	c, err := r.Cookie(noteCookie)
	if err != nil || c.Value == "" {
		return ""
	}
	http.SetCookie(w, &http.Cookie{Name: noteCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	text, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return ""
	}
	return clip(400, string(text))
}
