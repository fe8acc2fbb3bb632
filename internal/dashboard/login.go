package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

type loginPage struct {
	Next     string
	Error    string
	Possible bool // there is a token to log in with
	Proxy    bool // or a proxy that says who one is
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
	d.answer(w, r, status, "login", "Log in", loginPage{next, why, d.cfg.Guard.Token != "", d.cfg.Proxy.Header != ""})
}

// login takes the API token for a session. No form of a session is asked for, as there is none yet; what comes from
// other sites' pages is refused before, as everywhere.
func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		d.fail(w, r, http.StatusBadRequest, errLongForm)
		return
	}
	next, from := safeNext(r.PostForm.Get("next")), d.access.origin(r)
	log := d.cfg.Log.With("from", from.String())
	switch {
	case d.cfg.Guard.Token == "":
		d.answerLogin(w, r, http.StatusForbidden, next, "There is no token to log in with.")
	case !d.access.attempts.allowed(from):
		w.Header().Set("Retry-After", "60")
		d.answerLogin(w, r, http.StatusTooManyRequests, next, "Too many wrong tokens. Wait a minute, then try again.")
	case !d.cfg.Guard.Is(strings.TrimSpace(r.PostForm.Get("token"))):
		d.access.attempts.failed(from)
		log.WarnContext(r.Context(), "dashboard login refused")
		d.answerLogin(w, r, http.StatusUnauthorized, next, "That is not the API token.")
	default:
		d.access.sessions.begin(w, d.access.secure(r))
		log.InfoContext(r.Context(), "dashboard login")
		http.Redirect(w, r, next, http.StatusSeeOther)
	}
}

var errNoSession = errors.New("there is no session to end: this login is the proxy's, or this machine's")

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request, v visitor) {
	if !v.logout {
		d.fail(w, r, http.StatusBadRequest, errNoSession)
		return
	}
	d.access.sessions.end(w, d.access.secure(r))
	d.cfg.Log.InfoContext(r.Context(), "dashboard logout", "by", v.name)
	d.note(w, "You are logged out.")
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func loginURL(next string) string {
	if next == "/" {
		return "/dashboard/login"
	}
	return "/dashboard/login?" + url.Values{"next": {next}}.Encode()
}

// safeNext is where to go after the login: a page of ours.
func safeNext(next string) string {
	u, err := url.Parse(next)
	if err != nil || len(next) > 2000 || u.Scheme != "" || u.Host != "" || u.Opaque != "" || strings.Contains(u.Path, "..") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	if u.Path == "/" || strings.HasPrefix(u.Path, "/dashboard/") && !strings.HasPrefix(u.Path, "/dashboard/log") {
		return u.RequestURI()
	}
	return "/"
}
