// Package egress says what may be dialled: for a remote, or for the URL that an app is notified at. It is
// asked at the moment of dialling, about the address that a name comes down to, so that a name which
// resolves to another address the next moment gains nothing. Link-local addresses, where clouds keep
// credentials, are never dialled; private networks only where the operator leads, or where a setting lists
// them.
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

// Policy says what may be dialled for a URL.
type Policy struct {
	Hosts   Hosts
	Foreign bool          // the URL is not the operator's: a redirect or a webhook's payload names it
	Timeout time.Duration // that connecting may take; 0: as long as the system lets it
}

// Fault says that the settings do not let a host be dialled.
type Fault struct{ Host, Why string }

func (e *Fault) Error() string { return e.Host + " " + e.Why }

// check decides on a host at the moment of dialling, when ip is what its name comes down to. What a
// name resolved to a moment before proves nothing.
func (p Policy) check(host, port string, ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	reach := scopeOf(ip)
	switch {
	case reach == never:
		return &Fault{host, "is a link-local, multicast or unspecified address, which is never asked, whatever " + p.Hosts.name() + " lists"}
	case p.Hosts.names(host, port) || p.Hosts.covers(ip, port):
		return nil
	case len(p.Hosts.rules) > 0:
		return &Fault{host, "is not in " + p.Hosts.name() + "; list it there if it is meant to be asked"}
	case reach == private && p.Foreign:
		return &Fault{host, "is on a private network, where only the operator may lead; list it in " + p.Hosts.name() + " if it is meant to be asked"}
	}
	return nil
}

// CheckName decides on a host that a proxy will resolve. What a proxy might take for an address, though we
// do not, is refused: 2130706433, 0x7f.1, or digits of another script.
func (p Policy) CheckName(host, port string) error {
	name := CanonicalHost(host)
	if ip, err := netip.ParseAddr(name); err == nil {
		return p.check(host, port, ip)
	}
	switch {
	case !hostPattern.MatchString(name) || numberPattern.MatchString(name):
		return &Fault{host, "is neither a name nor an address as a proxy may be asked for it; write 127.0.0.1 or git.example.org, in ASCII"}
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return p.check(host, port, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	case len(p.Hosts.rules) > 0 && !p.Hosts.names(host, port):
		return &Fault{host, "is not in " + p.Hosts.name() + "; list it there if it is meant to be asked"}
	}
	return nil
}

// numberPattern finds a last label that is a number. No domain at the top is one.
var numberPattern = regexp.MustCompile(`(^|\.)([0-9]+|0x[0-9a-f]*)$`)

// Dial connects to a host that the Policy admits.
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
				return &Fault{host, "resolves to no address"}
			}
			return p.check(host, port, to.Addr())
		},
	}
	return dialer.DialContext(ctx, network, address)
}
