package egress

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// hostRule is one entry of a list: a name, a wildcard, an address or a range of them.
type hostRule struct {
	name   string       // in lower case; of *.example.org it is .example.org; empty for addresses
	prefix netip.Prefix // of addresses
	port   string       // empty for any
}

// Hosts is a setting that lists hosts. An empty one lists none, and lets any be dialled.
type Hosts struct {
	setting string // its name, for whoever is to change it
	rules   []hostRule
}

var hostPattern = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

// ParseHosts parses the entries of the setting by that name: names, *.example.org, addresses, and ranges of
// them, each perhaps with a port.
func ParseHosts(setting string, entries []string) (Hosts, error) {
	list := Hosts{setting: setting}
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
			return Hosts{}, fmt.Errorf("%s: %q is neither a host's name, nor *.example.org, an address or a range as 10.0.0.0/8, with or without :port", setting, entry)
		}
		list.rules = append(list.rules, rule)
	}
	return list, nil
}

// name is how an error names the setting.
func (list Hosts) name() string { return "the setting " + cmp.Or(list.setting, "hosts") }

func parseHost(text string) (hostRule, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return hostRule{prefix: prefix.Masked()}, true
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		ip = ip.Unmap()
		return hostRule{prefix: netip.PrefixFrom(ip, ip.BitLen())}, true
	}
	name := CanonicalHost(text)
	if !hostPattern.MatchString(name) {
		return hostRule{}, false
	}
	return hostRule{name: strings.TrimPrefix(name, "*")}, true
}

// CanonicalHost returns a host's name as it is compared: in lower case, without the root's dot.
func CanonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// names reports whether the list has a host by its name.
func (list Hosts) names(host, port string) bool {
	host = CanonicalHost(host)
	for _, rule := range list.rules {
		match := rule.name == host || strings.HasPrefix(rule.name, ".") && strings.HasSuffix(host, rule.name)
		if rule.name != "" && match && (rule.port == "" || rule.port == port) {
			return true
		}
	}
	return false
}

// covers reports whether the list has an address.
func (list Hosts) covers(ip netip.Addr, port string) bool {
	for _, rule := range list.rules {
		if rule.prefix.Contains(ip) && (rule.port == "" || rule.port == port) {
			return true
		}
	}
	return false
}

// SameOrigin reports whether a request still goes where the first one went: the same host and port, or
// from http to https on the default ports.
func SameOrigin(from, to *url.URL) bool {
	if CanonicalHost(from.Hostname()) != CanonicalHost(to.Hostname()) {
		return false
	}
	return PortOf(from) == PortOf(to) || PortOf(from) == "80" && to.Scheme == "https" && PortOf(to) == "443"
}

// PortOf returns the port that a URL names, or that its scheme stands for.
func PortOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443", "ssh": "22", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
}
