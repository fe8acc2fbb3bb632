package egress

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// hostRule is an entry of a list: a name, a wildcard, an address or a range of addresses.
type hostRule struct {
	name   string       // in lower case; .example.org for *.example.org; empty for addresses
	prefix netip.Prefix // of addresses
	port   string       // empty for any
}

// Hosts is the value of a setting that lists hosts. An empty list allows any host.
type Hosts struct {
	setting string // its name, for errors
	rules   []hostRule
}

var hostPattern = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

// ParseHosts parses the entries of a setting: names, wildcards such as *.example.org, addresses and ranges,
// each with an optional port.
func ParseHosts(setting string, entries []string) (Hosts, error) {
	list := Hosts{setting: setting}
	for _, entry := range entries {
		rule, ok := parseHost(entry)
		if !ok {
			rule, ok = parseHostPort(entry)
		}
		if !ok {
			return Hosts{}, fmt.Errorf("%s: %q is not a host name, *.example.org, an address or a range such as "+
				"10.0.0.0/8, with an optional :port", setting, entry)
		}
		list.rules = append(list.rules, rule)
	}
	return list, nil
}

func parseHostPort(entry string) (rule hostRule, ok bool) {
	host, port, err := net.SplitHostPort(entry)
	if err != nil {
		return hostRule{}, false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return hostRule{}, false
	}
	rule, ok = parseHost(host)
	rule.port = port
	return rule, ok
}

// name returns the setting's name for errors.
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

// CanonicalHost returns a host name for comparison: in lower case, without a trailing dot.
func CanonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// names reports whether the list contains a host by name.
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

// covers reports whether the list contains an address.
func (list Hosts) covers(ip netip.Addr, port string) bool {
	for _, rule := range list.rules {
		if rule.prefix.Contains(ip) && (rule.port == "" || rule.port == port) {
			return true
		}
	}
	return false
}

// SameOrigin reports whether a redirect stays on the same host and port, or changes from http to https on the default
// ports.
func SameOrigin(from, to *url.URL) bool {
	if CanonicalHost(from.Hostname()) != CanonicalHost(to.Hostname()) {
		return false
	}
	return PortOf(from) == PortOf(to) || PortOf(from) == "80" && to.Scheme == "https" && PortOf(to) == "443"
}

// PortOf returns the port of a URL, or the default port of its scheme.
func PortOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443", "ssh": "22", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
}

// CheckPrefix returns an error unless a string is the prefix of a remote's URL, as settings list them.
func CheckPrefix(prefix string) error {
	u, err := url.Parse(prefix)
	switch {
	case strings.ContainsAny(prefix, ",;*\"'`<>"):
		return errors.New("a URL prefix contains a comma, a quote or a wildcard: list prefixes with white space between, without these")
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh":
		return errors.New("want URL prefixes such as https://git.example.com/acme/")
	case strings.ContainsAny(prefix, "?#"):
		return errors.New("a URL prefix contains a query or a fragment; remove it")
	}
	if _, hasPassword := u.User.Password(); hasPassword {
		return errors.New("a URL prefix contains a password; remove it")
	}
	return nil
}
