package wire

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"lockstep/internal/egress"
)

// Config holds the network settings. Zero fields take the defaults.
type Config struct {
	// Hosts lists the allowed hosts, including the targets of redirects: names, *.example.org, addresses and
	// ranges, each with an optional port. If empty, the URL of a change may name any host; the URL of a webhook
	// or redirect may not name a host on a private network. Link-local addresses are never allowed.
	Hosts []string

	// Proxy is the URL (http, https or socks5) of the proxy for all remotes. It defaults to HTTP_PROXY,
	// HTTPS_PROXY and NO_PROXY, which do not apply to SSH. A proxy resolves host names itself, so only the name
	// is checked against Hosts.
	Proxy string

	Timeouts map[string]Timeouts // by host, as [Limiter] names it; "" for all others

	Rewrites egress.Rewrites // of the URLs of remotes; their results are the operator's

	CAFile     string // PEM bundle of additional certificate authorities, read again when it changes
	KnownHosts string // known_hosts file; defaults to those of the user and the system

	// CheckURL returns an error for a URL of a remote that is not to be used. CheckRef returns one for a full
	// ref name that the caller does not support; the text must not repeat the name. Both are optional.
	CheckURL, CheckRef func(string) error

	Log *slog.Logger // optional
}

// Network connects to remotes. It pools connections to URLs of the operator, foreign URLs and proxies separately,
// since each is checked differently when it is dialled.
type Network struct {
	hosts              egress.Hosts
	proxy              *url.URL // for all remotes; nil for none
	proxyFor           func(*http.Request) (*url.URL, error)
	trust              *egress.Trust
	knownHosts         []string
	knownHostsRequired bool // set by Config: the file must exist
	checkURL           func(string) error
	checkRef           func(string) error
	knownLines         knownCache
	skippedFiles       sync.Map // default known_hosts files that cannot be read
	log                *slog.Logger
	hostTimeouts       map[string]Timeouts // Config.Timeouts
	rewrites           egress.Rewrites

	operator, foreign, proxied *egress.Transport

	remotes remotes
}

// NewNetwork reads the files that cfg names. It does not connect.
func NewNetwork(cfg Config) (*Network, error) {
	n := &Network{
		proxyFor: http.ProxyFromEnvironment, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)),
		checkURL: cfg.CheckURL, checkRef: cfg.CheckRef, hostTimeouts: cfg.Timeouts,
		rewrites: cfg.Rewrites,
	}
	if n.checkURL == nil {
		n.checkURL = func(string) error { return nil }
	}
	if n.checkRef == nil {
		n.checkRef = func(string) error { return nil }
	}
	var err error
	if n.hosts, err = egress.ParseHosts("hosts", cfg.Hosts); err != nil {
		return nil, err
	}
	if cfg.Proxy != "" {
		if n.proxy, err = parseProxy(cfg.Proxy); err != nil {
			return nil, err
		}
		n.proxyFor = http.ProxyURL(n.proxy)
	}
	if n.trust, err = egress.NewTrust(cfg.CAFile); err != nil {
		return nil, err
	}
	n.knownHosts, n.knownHostsRequired = knownHostsFiles(cfg.KnownHosts)
	if n.knownHostsRequired {
		if _, err := os.ReadFile(cfg.KnownHosts); err != nil {
			return nil, fmt.Errorf("known-hosts: %w", err)
		}
	}
	operator, foreign, proxied := pool(), pool(), pool()
	operator.DialContext = egress.Policy{Hosts: n.hosts, Timeout: dialTimeout}.Dial
	foreign.DialContext = egress.Policy{Hosts: n.hosts, Foreign: true, Timeout: dialTimeout}.Dial
	proxied.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	proxied.Proxy = n.proxyFor
	proxied.OnProxyConnectResponse = checkProxyAnswer
	n.operator, n.foreign, n.proxied = n.trust.Transport(operator), n.trust.Transport(foreign), n.trust.Transport(proxied)
	return n, nil
}

func pool() *http.Transport {
	return &http.Transport{
		TLSHandshakeTimeout: tlsTimeout,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 8,
		ForceAttemptHTTP2:   true,
	}
}

// Asked returns the URL at which the remote with a URL is asked. Credentials and limits are those for it.
func (n *Network) Asked(url string) string { return n.rewrites.Asked(url) }

// Close closes idle connections.
func (n *Network) Close() {
	for _, pool := range []*egress.Transport{n.operator, n.foreign, n.proxied} {
		pool.CloseIdleConnections()
	}
}

func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("proxy: want a URL such as http://proxy.example.org:3128")
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return u, nil
	}
	return nil, errors.New("proxy: unsupported scheme; use http, https or socks5")
}

// proxyFault is a proxy's refusal to connect.
type proxyFault int

func (e proxyFault) Error() string {
	advice := ""
	if e == http.StatusProxyAuthRequired {
		advice = "; add a user name and password to the setting proxy"
	}
	return fmt.Sprintf("the proxy refused to connect (HTTP %d)%s", int(e), advice)
}

// route sends the HTTP requests of one operation through the pool for their URL.
type route struct {
	net     *Network
	origin  *url.URL // URL of the operation; nil if all URLs are the operator's
	foreign bool     // origin is foreign
}

// RoundTrip implements [http.RoundTripper].
func (r *route) RoundTrip(req *http.Request) (*http.Response, error) {
	pool, err := r.pool(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return pool.RoundTrip(req)
}

func (r *route) pool(req *http.Request) (http.RoundTripper, error) {
	foreign := r.foreign || r.origin != nil && !egress.SameOrigin(r.origin, req.URL)
	proxy, err := r.net.proxyFor(req)
	switch {
	case err != nil:
		return nil, errors.New("the proxy in the environment is not a URL; correct HTTP_PROXY and HTTPS_PROXY")
	case proxy != nil:
		p := egress.Policy{Hosts: r.net.hosts, Foreign: foreign}
		return r.net.proxied, p.CheckName(req.URL.Hostname(), egress.PortOf(req.URL))
	case foreign:
		return r.net.foreign, nil
	}
	return r.net.operator, nil
}

// SameOrigin reports whether two URLs name the same host and port. A URL of another origin than a remote's,
// that the remote or its content names, is foreign; see [Network.Dial].
func SameOrigin(remote, other string) bool {
	a, err := url.Parse(remote)
	if err != nil {
		return false
	}
	b, err := url.Parse(other)
	return err == nil && egress.SameOrigin(a, b)
}

// Transport returns a transport for URLs of the operator.
func (n *Network) Transport() http.RoundTripper { return &route{net: n} }

// knownHostsFiles returns the known_hosts files, and whether they must exist.
func knownHostsFiles(setting string) (files []string, must bool) {
	if setting != "" {
		return []string{setting}, true
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, home+"/.ssh/known_hosts")
	}
	return append(files, "/etc/ssh/ssh_known_hosts"), false
}

// Check returns the error that [NewNetwork] would return. It does not connect.
func (c Config) Check() error {
	n, err := NewNetwork(c)
	if err != nil {
		return err
	}
	n.Close()
	return nil
}
