package egress

import (
	"net"
	"strings"
)

// IsLocal reports whether a host of a URL, a name or an address, is this machine.
func IsLocal(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
