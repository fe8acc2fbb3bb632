package server

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Guard authenticates requests that make changes or read protected data. They need the token or, if none is
// configured, must come from this machine.
type Guard struct {
	// The present token, as its file may change; nil, or always "", allows local requests only.
	Token    func() string
	Loopback bool // the listener accepts local connections only
}

// HasToken reports whether a token is configured.
func (g Guard) HasToken() bool { return g.token() != "" }

func (g Guard) token() string {
	if g.Token == nil {
		return ""
	}
	return g.Token()
}

// Errors of [Guard.Check].
var (
	ErrNotLocal   = errors.New("without an API token only requests from localhost are allowed; set api-token-file")
	ErrWantsToken = errors.New("send the API token as a bearer token")
	ErrNoAPIToken = errors.New("the request has an Authorization header, and this process has no API token: " +
		"send none, or set api-token-file; tokens of apps read with the role reader")
)

// Check returns nil if the request is allowed, else ErrNotLocal, ErrNoAPIToken or ErrWantsToken. Without a
// token it requires a loopback listener, a local Host header, which protects against DNS rebinding, no sign
// of a proxy, and no Authorization header: a client with the token of an app is not the operator.
func (g Guard) Check(r *http.Request) error {
	configured := g.token()
	if configured == "" {
		if !g.Loopback || !local(r.Host) || forwarded(r) {
			return ErrNotLocal
		}
		if len(r.Header.Values("Authorization")) > 0 {
			return ErrNoAPIToken
		}
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || !equal(configured, token) {
		return ErrWantsToken
	}
	return nil
}

// Is reports whether token is the configured token. It returns false if none is configured. It compares hashes, so the
// time it takes reveals neither the token nor its length.
func (g Guard) Is(token string) bool { return equal(g.token(), token) }

func equal(configured, token string) bool {
	want, got := sha256.Sum256([]byte(configured)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && configured != ""
}

func (cfg Config) guard() Guard { return Guard{cfg.Token, cfg.Loopback} }

// admin reports whether a request has the rights of the API token.
func (cfg Config) admin(r *http.Request) bool { return cfg.guard().Check(r) == nil }

// Key returns a key of 32 bytes for a purpose, which changes with the token; nil if none is configured.
func (g Guard) Key(purpose string) []byte {
	token := g.token()
	if token == "" {
		return nil
	}
	key, _ := hkdf.Key(sha256.New, []byte(token), nil, purpose, sha256.Size) // fails for longer keys only
	return key
}

// guarded calls next for requests that pass the guard.
func guarded(cfg Config, next http.Handler) http.Handler {
	guard := cfg.guard()
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

var errForeignHost = errors.New("without an API token only requests for localhost are answered; " +
	"use http://127.0.0.1 or http://localhost with the port, or set api-token-file")

// forLocalhost refuses requests to a loopback listener without a token if they name another host: by DNS
// rebinding, a web page in a local browser could otherwise read what is open without a token. It lets pass
// webhooks, which a tunnel may forward under any name, probes, which show nothing worth reading, and requests
// from trusted proxies.
func forLocalhost(cfg Config, next http.Handler) http.Handler {
	if cfg.guard().HasToken() || !cfg.Loopback {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		anyHost := strings.HasPrefix(r.URL.Path, "/hooks/") || r.URL.Path == "/livez" || r.URL.Path == "/readyz"
		if !anyHost && !local(r.Host) && !cfg.proxied(r) {
			http.Error(w, errForeignHost.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (cfg Config) proxied(r *http.Request) bool { return IsProxied(r, cfg.Proxies) }

// IsProxied reports whether one of the given proxies sent a request.
func IsProxied(r *http.Request, proxies []netip.Prefix) bool { return contains(proxies, peerOf(r)) }

// ClientAddr returns the address of the client that sent a request, past the given proxies, whose X-Forwarded-For it
// trusts. It returns the zero Addr if the address is unknown.
func ClientAddr(r *http.Request, proxies []netip.Prefix) netip.Addr {
	client := peerOf(r)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil || !contains(proxies, client) {
			break
		}
		client = before.Unmap().WithZone("")
	}
	return client
}

// Network returns what counts as one client: an IPv4 address, or the /64 of an IPv6 address.
func Network(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // the zero Prefix for the zero Addr
	return p
}

func peerOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap().WithZone("")
}

func contains(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Loopback reports whether the listener accepts connections from this machine only.
func Loopback(listener net.Listener) bool {
	address, ok := listener.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// forwarded reports whether the request came through a proxy, and so possibly from another machine.
func forwarded(r *http.Request) bool {
	return slices.ContainsFunc([]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
		"X-Real-Ip"}, func(name string) bool {
		return len(r.Header.Values(name)) > 0
	})
}

// local reports whether host, with or without a port, is localhost or a loopback address.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
