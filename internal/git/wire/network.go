package wire

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"lockstep/internal/egress"
)

// Config says how remotes are reached. Zero fields take the defaults.
type Config struct {
	// Hosts lists what may be asked, redirects' targets too: names, *.example.org, addresses, ranges, each
	// perhaps with a port. Of none: any host for the URL of a change; for what a webhook or a redirect
	// names only hosts that are not on a private network. A link-local address is never asked.
	Hosts []string

	// Proxy is the URL (http, https or socks5) of the proxy for everything; empty: as HTTP_PROXY, HTTPS_PROXY
	// and NO_PROXY say, for http and https alone. What a proxy is asked for it resolves itself: of such a
	// remote only the name is checked against Hosts.
	Proxy string

	CAFile     string // PEM bundle of certificate authorities to trust beside the system's
	KnownHosts string // known_hosts file; empty: those of the user and of the system
}

// Network is how all of a volume's remotes are reached. Connections are pooled by what was checked when
// they were dialled: one made for an operator's URL is not for a webhook's.
type Network struct {
	hosts      egress.Hosts
	proxy      *url.URL // for everything, or nil
	proxyFor   func(*http.Request) (*url.URL, error)
	tls        *tls.Config
	knownHosts []string
	mustKnow   bool // knownHosts are named by a setting: they must be there

	own, foreign, proxied *http.Transport
}

// NewNetwork reads the files that cfg names, and connects to nothing.
func NewNetwork(cfg Config) (*Network, error) {
	n := &Network{proxyFor: http.ProxyFromEnvironment}
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
	if n.tls, err = egress.Trust(cfg.CAFile); err != nil {
		return nil, err
	}
	n.knownHosts, n.mustKnow = knownHostsFiles(cfg.KnownHosts)
	if n.mustKnow {
		if _, err := os.ReadFile(cfg.KnownHosts); err != nil {
			return nil, fmt.Errorf("known-hosts: %w", err)
		}
	}
	n.own, n.foreign, n.proxied = n.pool(), n.pool(), n.pool()
	n.own.DialContext = egress.Policy{Hosts: n.hosts, Timeout: dialTimeout}.Dial
	n.foreign.DialContext = egress.Policy{Hosts: n.hosts, Foreign: true, Timeout: dialTimeout}.Dial
	n.proxied.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	n.proxied.Proxy = n.proxyFor
	n.proxied.OnProxyConnectResponse = checkProxyAnswer
	return n, nil
}

func (n *Network) pool() *http.Transport {
	return &http.Transport{
		TLSClientConfig:       n.tls.Clone(),
		TLSHandshakeTimeout:   tlsTimeout,
		ResponseHeaderTimeout: headerTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   8,
		ForceAttemptHTTP2:     true,
	}
}

// Close closes idle connections.
func (n *Network) Close() {
	for _, pool := range []*http.Transport{n.own, n.foreign, n.proxied} {
		pool.CloseIdleConnections()
	}
}

func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("proxy: want a URL, as http://proxy.example.org:3128")
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return u, nil
	}
	return nil, errors.New("proxy: the URL's scheme is not supported; use http, https or socks5")
}

// proxyFault is a proxy's refusal to connect.
type proxyFault int

func (e proxyFault) Error() string {
	advice := ""
	if e == http.StatusProxyAuthRequired {
		advice = "; give it a user name and a password in the setting proxy"
	}
	return fmt.Sprintf("the proxy refuses to connect (HTTP %d)%s", int(e), advice)
}

// route carries the HTTP requests of one operation, each through the pool that its URL calls for.
type route struct {
	net     *Network
	origin  *url.URL // the operation's own; nil when all are the operator's
	foreign bool     // so is the origin
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
		return nil, errors.New("the proxy that the environment names is no URL; correct HTTP_PROXY and HTTPS_PROXY")
	case proxy != nil:
		p := egress.Policy{Hosts: r.net.hosts, Foreign: foreign}
		return r.net.proxied, p.CheckName(req.URL.Hostname(), egress.PortOf(req.URL))
	case foreign:
		return r.net.foreign, nil
	}
	return r.net.own, nil
}

// Transport returns a transport for URLs that the operator names.
func (n *Network) Transport() http.RoundTripper { return &route{net: n} }

// knownHostsFiles returns the files to look for host keys in, and whether they must be there.
func knownHostsFiles(setting string) (files []string, must bool) {
	if setting != "" {
		return []string{setting}, true
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, home+"/.ssh/known_hosts")
	}
	return append(files, "/etc/ssh/ssh_known_hosts"), false
}

// Check reports what [NewNetwork] would refuse of the settings of the network. It connects to nothing.
func (c Config) Check() error {
	n, err := NewNetwork(c)
	if err != nil {
		return err
	}
	n.Close()
	return nil
}
