// Package egress decides which hosts may be dialled for a remote or for an app's notify URL. It checks the
// resolved address at the time of dialling, so that DNS rebinding does not help an attacker. Addresses where
// clouds offer credentials, link-local and others, are never dialled. Private networks are only dialled for
// URLs from the operator, or if a setting lists them. It also parses rate limits in responses, for all
// clients.
package egress

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Policy decides which hosts may be dialled for a URL.
type Policy struct {
	Hosts   Hosts
	Foreign bool          // the URL is not from the operator, but from a redirect or a webhook
	Timeout time.Duration // for connecting; 0 for the system's timeout
}

// Fault means that the settings do not allow a host.
type Fault struct{ Host, Why string }

func (e *Fault) Error() string { return e.Host + " " + e.Why }

// check decides on a host by its resolved address ip.
func (p Policy) check(host, port string, ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	reach := scopeOf(ip)
	switch {
	case reach == never:
		return &Fault{host, "is a link-local, cloud metadata, multicast or unspecified address, which is never " +
			"allowed, even if " + p.Hosts.name() + " lists it"}
	case p.Hosts.names(host, port) || p.Hosts.covers(ip, port):
		return nil
	case len(p.Hosts.rules) > 0:
		return &Fault{host, "is not in " + p.Hosts.name() + "; add it there to allow it"}
	case reach == private && p.Foreign:
		return &Fault{host, "is on a private network; add it to " + p.Hosts.name() + " to allow it"}
	}
	return nil
}

// CheckName decides on a host that a proxy will resolve. It refuses names that a proxy might parse as an address
// although we do not: 2130706433, 0x7f.1, or digits of another script.
func (p Policy) CheckName(host, port string) error {
	name := CanonicalHost(host)
	if ip, err := netip.ParseAddr(name); err == nil {
		return p.check(host, port, ip)
	}
	switch {
	case !hostPattern.MatchString(name) || numberPattern.MatchString(name):
		return &Fault{host, "is neither a host name nor an IP address in the usual form; " +
			"use a form such as 127.0.0.1 or git.example.org, in ASCII"}
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return p.check(host, port, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	case len(p.Hosts.rules) > 0 && !p.Hosts.names(host, port):
		return &Fault{host, "is not in " + p.Hosts.name() + "; add it there to allow it"}
	}
	return nil
}

// numberPattern matches names whose last label is a number. No top-level domain is one.
var numberPattern = regexp.MustCompile(`(^|\.)([0-9]+|0x[0-9a-f]*)$`)

// Dial connects to a host if the policy allows it.
func (p Policy) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		Timeout: p.Timeout, KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return &Fault{host, "does not resolve to an IP address"}
			}
			return p.check(host, port, to.Addr())
		},
	}
	return dialer.DialContext(ctx, network, address)
}
