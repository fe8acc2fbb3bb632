package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"lockstep/internal/server"
)

type loginPage struct {
	Next     string
	Error    string
	Possible bool // an API token is configured
	Proxy    bool // an authenticating proxy is configured
}

func (d *Dashboard) showLogin(w http.ResponseWriter, r *http.Request) {
	next := safeNext(r.URL.Query().Get("next"))
	if d.access.visitor(r).admin() {
		http.Redirect(w, r, next, http.StatusSeeOther)
		return
	}
	d.answerLogin(w, r, http.StatusOK, next, "")
}

func (d *Dashboard) answerLogin(w http.ResponseWriter, r *http.Request, status int, next, why string) {
	d.answer(w, r, status, "login", "Log in", loginPage{next, why, d.cfg.Guard.HasToken(), d.cfg.Proxy.Header != ""})
}

// login starts a session for a visitor who submits the API token. It needs no CSRF token, because there is no session
// yet; the server has already refused cross-site requests.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		d.fail(w, r, errLongForm)
		return
	}
	next, from := safeNext(r.PostForm.Get("next")), d.access.origin(r)
	log := d.cfg.Log.With("from", from.String())
	switch {
	case !d.cfg.Guard.HasToken():
		d.answerLogin(w, r, http.StatusForbidden, next, "No API token is configured.")
	case d.cfg.Guard.Is(strings.TrimSpace(r.PostForm.Get("token"))): // even if the address has too many failed attempts
		d.access.sessions.start(w, d.access.secure(r))
		log.InfoContext(r.Context(), "dashboard login")
		http.Redirect(w, r, next, http.StatusSeeOther)
	case !d.access.attempts.allowed(from):
		w.Header().Set("Retry-After", "60")
		d.answerLogin(w, r, http.StatusTooManyRequests, next, "That is not the API token, after too many failed "+
			"attempts. Wait a minute, then try again.")
	default:
		d.access.attempts.failed(from)
		log.WarnContext(r.Context(), "dashboard login refused")
		d.answerLogin(w, r, http.StatusUnauthorized, next, "That is not the API token.")
	}
}

var errNoSession = server.Problem(
	errors.New("there is no session to end: you are logged in by the proxy or as a local user"), http.StatusBadRequest)

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request, v visitor) {
	if !v.logout {
		d.fail(w, r, errNoSession)
		return
	}
	d.access.sessions.end(w, d.access.secure(r))
	d.cfg.Log.InfoContext(r.Context(), "dashboard logout", "by", v.name)
	flash := "You are logged out."
	for _, s := range d.access.sessions.read(r) {
		if err := d.access.ended.add(r.Context(), s); err != nil {
			d.cfg.Log.WarnContext(r.Context(), "logout not recorded, copies of the session's cookie stay valid",
				"until", s.expires, "error", err)
			flash = "You are logged out in this browser. Copies of its cookie stay valid, because Redis did not answer."
		}
	}
	d.done(w, r, "/", flash)
}

func loginURL(next string) string {
	if next == "/" {
		return "/dashboard/login"
	}
	return "/dashboard/login?" + url.Values{"next": {next}}.Encode()
}

// safeNext returns next if it is a page of the dashboard, else "/", so that a login never redirects elsewhere.
func safeNext(next string) string {
	u, err := url.Parse(next)
	if err != nil || len(next) > 2000 || u.Scheme != "" || u.Host != "" || u.Opaque != "" ||
		strings.Contains(u.Path, "..") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	if u.Path == "/" || strings.HasPrefix(u.Path, "/dashboard/") && !strings.HasPrefix(u.Path, "/dashboard/log") {
		return u.RequestURI()
	}
	return "/"
}
