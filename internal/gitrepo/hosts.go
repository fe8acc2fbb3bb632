package gitrepo

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hostRule is one entry of the setting hosts: a name, a wildcard, an address or a range of them.
type hostRule struct {
	name   string       // in lower case; of *.example.org it is .example.org; empty for addresses
	prefix netip.Prefix // of addresses
	port   string       // empty for any
}

// hostList is the setting hosts. An empty one lists no host, and lets any be dialled.
type hostList []hostRule

var hostPattern = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

func parseHosts(entries []string) (hostList, error) {
	var list hostList
	for _, entry := range entries {
		rule, ok := parseHost(entry)
		if !ok {
			host, port, err := net.SplitHostPort(entry)
			if err == nil {
				rule, ok = parseHost(host)
			}
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				ok = false
			}
			rule.port = port
		}
		if !ok {
			return nil, fmt.Errorf("hosts: %q is neither a host's name, nor *.example.org, an address or a range as 10.0.0.0/8, with or without :port", entry)
		}
		list = append(list, rule)
	}
	return list, nil
}

func parseHost(text string) (hostRule, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return hostRule{prefix: prefix.Masked()}, true
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap()
		return hostRule{prefix: netip.PrefixFrom(ip, ip.BitLen())}, true
	}
	name := canonicalHost(text)
	if !hostPattern.MatchString(name) {
		return hostRule{}, false
	}
	return hostRule{name: strings.TrimPrefix(name, "*")}, true
}

// canonicalHost returns a host's name as it is compared: in lower case, without the root's dot.
func canonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// names reports whether the list has a host by its name.
func (list hostList) names(host, port string) bool {
	host = canonicalHost(host)
	for _, rule := range list {
		match := rule.name == host || strings.HasPrefix(rule.name, ".") && strings.HasSuffix(host, rule.name)
		if rule.name != "" && match && (rule.port == "" || rule.port == port) {
			return true
		}
	}
	return false
}

// covers reports whether the list has an address.
func (list hostList) covers(ip netip.Addr, port string) bool {
	for _, rule := range list {
		if rule.prefix.Contains(ip) && (rule.port == "" || rule.port == port) {
			return true
		}
	}
	return false
}

// scope is how far an address reaches.
type scope int

const (
	public  scope = iota
	private       // loopback, private networks, carrier-grade NAT, what is reserved
	never         // link-local, where clouds keep their credentials; multicast; no address at all
)

var (
	neverDialled = prefixes("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/128", "fe80::/10", "ff00::/8")
	privateNets  = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "240.0.0.0/4", "::1/128", "64:ff9b:1::/48", "fc00::/7", "fec0::/10",
		"168.63.129.16/32") // public, but in Azure the machine's own host
	// Within these an IPv4 address is embedded, at this byte.
	embeddings = map[netip.Prefix]int{
		netip.MustParsePrefix("64:ff9b::/96"):    12, // NAT64
		netip.MustParsePrefix("64:ff9b:1::/48"):  12, // NAT64, local use
		netip.MustParsePrefix("2002::/16"):       2,  // 6to4
		netip.MustParsePrefix("::/96"):           12, // IPv4-compatible
		netip.MustParsePrefix("::ffff:0:0:0/96"): 12, // IPv4-translated
	}
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// scopeOf returns the scope of an address, or that of an IPv4 address embedded in it when that is narrower.
func scopeOf(ip netip.Addr) scope {
	ip = ip.Unmap().WithZone("")
	s := public
	for _, prefix := range privateNets {
		if prefix.Contains(ip) {
			s = private
		}
	}
	for _, prefix := range neverDialled {
		if prefix.Contains(ip) {
			s = never
		}
	}
	for prefix, at := range embeddings {
		if prefix.Contains(ip) && ip != netip.IPv6Loopback() {
			bytes := ip.As16()
			s = max(s, scopeOf(netip.AddrFrom4([4]byte(bytes[at:at+4]))))
		}
	}
	return s
}

// policy says what may be dialled for a URL.
type policy struct {
	hosts   hostList
	foreign bool // the URL is not the operator's: a redirect or a webhook's payload names it
}

// hostFault says that the settings do not let a host be dialled.
type hostFault struct{ host, why string }

func (e *hostFault) Error() string { return e.host + " " + e.why }

// check decides on a host at the moment of dialling, when ip is what its name comes down to. What a
// name resolved to a moment before proves nothing.
func (p policy) check(host, port string, ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	reach := scopeOf(ip)
	switch {
	case reach == never:
		return &hostFault{host, "is a link-local, multicast or unspecified address, which is never asked, whatever the setting hosts lists"}
	case p.hosts.names(host, port) || p.hosts.covers(ip, port):
		return nil
	case len(p.hosts) > 0:
		return &hostFault{host, "is not in the setting hosts; list it there if it is meant to be asked"}
	case reach == private && p.foreign:
		return &hostFault{host, "is on a private network, where neither a webhook nor a redirect may lead; list it in the setting hosts if it is meant to be asked"}
	}
	return nil
}

// checkName decides on a host that a proxy will resolve. What a proxy might take for an address, though we
// do not, is refused: 2130706433, 0x7f.1, or digits of another script.
func (p policy) checkName(host, port string) error {
	name := canonicalHost(host)
	if ip, err := netip.ParseAddr(name); err == nil {
		return p.check(host, port, ip)
	}
	switch {
	case !hostPattern.MatchString(name) || numberPattern.MatchString(name):
		return &hostFault{host, "is neither a name nor an address as a proxy may be asked for it; write 127.0.0.1 or git.example.org, in ASCII"}
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return p.check(host, port, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	case len(p.hosts) > 0 && !p.hosts.names(host, port):
		return &hostFault{host, "is not in the setting hosts; list it there if it is meant to be asked"}
	}
	return nil
}

// numberPattern finds a last label that is a number. No domain at the top is one.
var numberPattern = regexp.MustCompile(`(^|\.)([0-9]+|0x[0-9a-f]*)$`)

// dial connects to a host that the policy admits.
func (p policy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		Timeout: dialTimeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return &hostFault{host, "resolves to no address"}
			}
			return p.check(host, port, to.Addr())
		},
	}
	return dialer.DialContext(ctx, network, address)
}

// sameOrigin reports whether a request still goes where the first one went: the same host and port, or
// from http to https on the default ports.
func sameOrigin(from, to *url.URL) bool {
	if canonicalHost(from.Hostname()) != canonicalHost(to.Hostname()) {
		return false
	}
	return portOf(from) == portOf(to) || portOf(from) == "80" && to.Scheme == "https" && portOf(to) == "443"
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443", "ssh": "22", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
}
