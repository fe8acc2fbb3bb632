package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
)

// Guard decides who may change something, and see what is not for everybody: who has the token. Without
// one, only this machine.
type Guard struct {
	Token    string
	Loopback bool // only this machine can connect
}

// Why a [Guard] lets a request not through.
var (
	ErrNotLocal   = errors.New("without an API token this is for localhost alone; set api-token-file")
	ErrWantsToken = errors.New("want the API token as a bearer token")
)

// Check is nil for a request that is let through. Where no token is asked for, only this machine is
// listened to, and the request must have been meant for it: a browser can be made to take the
// loopback interface for the page's own site, but not to say so. What a proxy passes on is not of this machine.
func (g Guard) Check(r *http.Request) error {
	if g.Token == "" {
		if !g.Loopback || !local(r.Host) || forwarded(r) {
			return ErrNotLocal
		}
		return nil
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || !g.Is(given) {
		return ErrWantsToken
	}
	return nil
}

// Is reports whether the token is given; no token never is. Hashing first makes the comparison take the
// same time for every wrong token, its length included.
func (g Guard) Is(given string) bool {
	want, got := sha256.Sum256([]byte(g.Token)), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && g.Token != ""
}

// guarded lets requests through that the guard lets through.
func guarded(cfg Config, next http.Handler) http.Handler {
	guard := Guard{cfg.Token, cfg.Loopback}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch err := guard.Check(r); {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, ErrWantsToken):
			w.Header().Set("WWW-Authenticate", `Bearer realm="lockstep"`)
			fail(w, http.StatusUnauthorized, err)
		default:
			fail(w, http.StatusForbidden, err)
		}
	})
}

// Loopback reports whether only this machine can connect to listener.
func Loopback(listener net.Listener) bool {
	address, ok := listener.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// forwarded reports whether a proxy says that it asks for somebody else, who need not be on this machine.
func forwarded(r *http.Request) bool {
	return slices.ContainsFunc([]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"}, func(name string) bool {
		return len(r.Header.Values(name)) > 0
	})
}

// local reports whether host, with or without a port, is this machine by a name that only it has.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
