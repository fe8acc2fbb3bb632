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

// access decides who a visitor is.
type access struct {
	guard    server.Guard
	proxy    Proxy
	sessions sessions
	attempts *attempts
}

func newAccess(cfg Config) (access, error) {
	sessions, err := newSessions(cfg.Guard.Token, cfg.Realm)
	return access{guard: cfg.Guard, proxy: cfg.Proxy, sessions: sessions, attempts: newAttempts()}, err
}

// visitor is who asks. The zero visitor may look at what is open to anybody.
type visitor struct {
	name   string    // "token", "localhost", or the user that a proxy names; "" for anybody
	proof  string    // what the visitor's forms are bound to; "" for a program, which needs none
	ends   time.Time // when a session ends; zero for none
	logout bool      // there is a session to end
}

// admin reports whether the visitor may change something, and see what the API shows with its token alone.
func (v visitor) admin() bool { return v.name != "" }

// visitor says who asks. What a proxy says counts from its own address alone; and what comes through it is not of
// this machine, whatever host it names.
func (a *access) visitor(r *http.Request) visitor {
	if user := a.user(r); user != "" {
		return visitor{name: user, proof: "user " + user}
	}
	if r.Header.Get("Authorization") != "" && a.guard.Token != "" && a.guard.Check(r) == nil {
		return visitor{name: "token"}
	}
	if s, ok := a.sessions.read(r); ok {
		return visitor{name: "token", proof: "session " + s.id, ends: s.ends, logout: true}
	}
	if a.guard.Token == "" && !a.proxied(r) && a.guard.Check(r) == nil {
		return visitor{name: "localhost", proof: "localhost"}
	}
	return visitor{}
}

// proxied reports whether the request comes from a trusted proxy.
func (a *access) proxied(r *http.Request) bool {
	peer, ok := peerOf(r)
	return ok && a.proxy.trusts(peer)
}

// trusts reports whether the address is one of the proxy's.
func (p Proxy) trusts(address netip.Addr) bool {
	return slices.ContainsFunc(p.From, func(from netip.Prefix) bool { return from.Contains(address) })
}

// user is whom a trusted proxy names, if that user may change something. A header that is there twice was not
// written by the proxy alone.
func (a *access) user(r *http.Request) string {
	if a.proxy.Header == "" || !a.proxied(r) {
		return ""
	}
	values := r.Header.Values(a.proxy.Header)
	if len(values) != 1 {
		return ""
	}
	user := strings.TrimSpace(values[0])
	strange := strings.ContainsFunc(user, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
	if user == "" || len(user) > 200 || strange || len(a.proxy.Users) > 0 && !slices.Contains(a.proxy.Users, user) {
		return ""
	}
	return user
}

// origin is the address that counts for how often somebody may try: the client's as the first of the trusted proxies
// before us saw it.
func (a *access) origin(r *http.Request) netip.Addr {
	client, _ := peerOf(r)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil || !a.proxy.trusts(client) {
			break
		}
		client = before.Unmap().WithZone("")
	}
	return client
}

// secure reports whether the visitor's browser speaks TLS: to us, to a proxy that says so, or by its own word,
// which a browser does not let a page choose.
func (a *access) secure(r *http.Request) bool {
	return r.TLS != nil || a.proxied(r) && r.Header.Get("X-Forwarded-Proto") == "https" ||
		strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

func peerOf(r *http.Request) (netip.Addr, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap().WithZone(""), err == nil
}

var (
	errNoLogin  = errors.New("log in to do that")
	errBadForm  = errors.New("this form was made for another session, or before the service was started anew; reload the page and try again")
	errLongForm = errors.New("the form is too long")
)

const maxForm = 16 << 10 // bytes

// forAdmins shows next to those who may see it, and the way to log in to others.
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

// changing lets a form through to next that the visitor's own session was shown. A program that sends the token
// itself is not asked for one: no page can make a browser send it.
func (d *Dashboard) changing(next func(http.ResponseWriter, *http.Request, visitor)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		v := d.access.visitor(r)
		switch err := r.ParseForm(); {
		case !v.admin():
			w.Header().Set("WWW-Authenticate", `Bearer realm="lockstep"`)
			d.fail(w, r, http.StatusUnauthorized, errNoLogin)
		case err != nil:
			d.fail(w, r, http.StatusBadRequest, errLongForm)
		case v.proof != "" && !d.access.sessions.madeFor(v.proof, r.PostForm.Get("csrf")):
			d.cfg.Log.WarnContext(r.Context(), "dashboard form refused", "by", v.name, "path", r.URL.Path)
			d.fail(w, r, http.StatusForbidden, errBadForm)
		default:
			next(w, r, v)
		}
	})
}
