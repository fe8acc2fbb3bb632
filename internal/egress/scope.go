package egress

import "net/netip"

// scope is the reach of an address.
type scope int

const (
	public  scope = iota
	private       // loopback, private networks, carrier-grade NAT, reserved, Teredo
	never         // link-local and other addresses of cloud metadata; multicast; unspecified
)

var (
	neverDialled = prefixes("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/128", "fe80::/10",
		"ff00::/8",
		// Metadata services that are not link-local: AWS, Google Cloud, Alibaba Cloud, Oracle Cloud.
		"fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32", "192.0.0.192/32")
	privateNets = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "240.0.0.0/4", "::1/128", "64:ff9b:1::/48", "2001::/32", "fc00::/7", "fec0::/10",
		"168.63.129.16/32") // public, but the host of the machine on Azure
	// Prefixes that embed an IPv4 address at this byte offset.
	embeddings = map[netip.Prefix]int{
		netip.MustParsePrefix("64:ff9b::/96"):    12, // NAT64
		netip.MustParsePrefix("64:ff9b:1::/48"):  12, // NAT64, local use
		netip.MustParsePrefix("2002::/16"):       2,  // 6to4
		teredo:                                   4,  // Teredo, the server; the client is at 12, inverted
		netip.MustParsePrefix("::/96"):           12, // IPv4-compatible
		netip.MustParsePrefix("::ffff:0:0:0/96"): 12, // IPv4-translated
	}
)

var teredo = netip.MustParsePrefix("2001::/32")

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// scopeOf returns the scope of an address, or that of an embedded IPv4 address if it is narrower.
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
	if teredo.Contains(ip) {
		client := [4]byte(ip.AsSlice()[12:])
		for i := range client {
			client[i] = ^client[i]
		}
		s = max(s, scopeOf(netip.AddrFrom4(client)))
	}
	return s
}
