package dashboard

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"lockstep/internal/server"
)

type access struct {
	guard    server.Guard
	proxy    Proxy
	sessions sessions
	ended    endedSessions
	attempts *attempts
}

func newAccess(cfg Config) access {
	return access{
		guard: cfg.Guard, proxy: cfg.Proxy, sessions: newSessions(cfg.Guard, cfg.Realm),
		ended: endedSessions{cfg.Redis, cfg.Realm}, attempts: newAttempts(),
	}
}

// visitor is the sender of a request. The zero visitor is anonymous and sees only public data.
type visitor struct {
	name    string    // "token", "localhost", or the user named by a proxy; "" if anonymous
	binding string    // identity that forms are bound to; "" for API clients, which need no form token
	expires time.Time // when the session ends; zero without a session
	logout  bool      // whether there is a session to end
}

// admin reports whether the visitor may make changes and see data that the API shows only with its token.
func (v visitor) admin() bool { return v.name != "" }

// visitor authenticates a request. The proxy's header is trusted only from the proxy's own addresses, and a request
// through the proxy never counts as local, whatever its Host header says.
func (a *access) visitor(r *http.Request) visitor {
	if user := a.user(r); user != "" {
		return visitor{name: user, binding: "user " + user}
	}
	if r.Header.Get("Authorization") != "" && a.guard.HasToken() && a.guard.Check(r) == nil {
		return visitor{name: "token"}
	}
	for _, s := range a.sessions.read(r) {
		if !a.ended.has(r.Context(), s) {
			return visitor{name: "token", binding: "session " + s.id, expires: s.expires, logout: true}
		}
	}
	if !a.guard.HasToken() && !a.proxied(r) && a.guard.Check(r) == nil {
		return visitor{name: "localhost", binding: "localhost"}
	}
	return visitor{}
}

func (a *access) proxied(r *http.Request) bool { return server.IsProxied(r, a.proxy.From) }

// user returns the user named by a trusted proxy if that user may make changes, or "". It rejects a repeated header,
// because the proxy did not write all of its values.
func (a *access) user(r *http.Request) string {
	if a.proxy.Header == "" || !a.proxied(r) {
		return ""
	}
	values := r.Header.Values(a.proxy.Header)
	if len(values) != 1 {
		return ""
	}
	user := strings.TrimSpace(values[0])
	unprintable := strings.ContainsFunc(user, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	})
	if user == "" || len(user) > 200 || unprintable || len(a.proxy.Users) > 0 && !slices.Contains(a.proxy.Users, user) {
		return ""
	}
	return user
}

// origin returns the client address that login attempts are counted by. It skips trusted proxies.
func (a *access) origin(r *http.Request) netip.Addr {
	return server.ClientAddr(r, a.proxy.From)
}

// secure reports whether the browser uses TLS: directly, according to a trusted proxy, or according to the
// Origin header, which pages cannot forge.
func (a *access) secure(r *http.Request) bool {
	return r.TLS != nil || a.proxied(r) && r.Header.Get("X-Forwarded-Proto") == "https" ||
		strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

var (
	errNoLogin = server.Problem(errors.New("log in to do that"), http.StatusUnauthorized)
	errBadForm = server.Problem(errors.New("this form belongs to another session, or the service has restarted since; "+
		"reload the page and try again"), http.StatusForbidden)
	errLongForm = server.Problem(errors.New("the form is too long"), http.StatusBadRequest)
)

const maxForm = 16 << 10 // bytes

// forAdmins calls next for admins and redirects other visitors to the login page.
func (d *Dashboard) forAdmins(next func(http.ResponseWriter, *http.Request, visitor)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := d.access.visitor(r)
		if !v.admin() {
			http.Redirect(w, r, loginURL(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		next(w, r, v)
	})
}

// action calls next for forms submitted by admins. It checks the form's CSRF token, except for clients that send the
// API token themselves: another site cannot make a browser do that.
func (d *Dashboard) action(next func(http.ResponseWriter, *http.Request, visitor)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		v := d.access.visitor(r)
		switch err := r.ParseForm(); {
		case !v.admin():
			w.Header().Set("WWW-Authenticate", `Bearer realm="lockstep"`)
			d.fail(w, r, errNoLogin)
		case err != nil:
			d.fail(w, r, errLongForm)
		case v.binding != "" && !d.access.sessions.validCSRF(v.binding, r.PostForm.Get("csrf")):
			d.cfg.Log.WarnContext(r.Context(), "dashboard form refused", "by", v.name, "path", r.URL.Path)
			d.fail(w, r, errBadForm)
		default:
			next(w, r, v)
		}
	})
}
