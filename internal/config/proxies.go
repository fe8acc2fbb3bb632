package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

// notIdentity lists headers that any client sends or that do not identify a user.
var notIdentity = []string{"authorization", "cookie", "host", "origin", "referer", "user-agent", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}

// checkProxies parses trusted-proxies and returns an error if only some of the three settings are set. A reader needs no admin-header:
// it asks trusted proxies whether a request came over TLS.
func (c *Config) checkProxies() error {
	switch {
	case c.AdminHeader != "" && len(c.TrustedProxies) == 0:
		return fmt.Errorf("admin-header %s: any client could send it; set trusted-proxies to the addresses of the proxy", c.AdminHeader)
	case c.AdminHeader == "" && len(c.TrustedProxies) > 0 && !c.Has(RoleReader):
		return errors.New("trusted-proxies: set admin-header to the header in which the proxy names the user, or add the role reader")
	case c.AdminHeader == "" && len(c.AdminUsers) > 0:
		return errors.New("admin-users: requires admin-header and trusted-proxies")
	case c.AdminHeader != "" && (!headerName.MatchString(c.AdminHeader) || slices.Contains(notIdentity, strings.ToLower(c.AdminHeader))):
		return fmt.Errorf("admin-header %.100q: want a header that names the user, such as X-Forwarded-User", c.AdminHeader)
	}
	c.proxies = nil
	for _, text := range c.TrustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address, single := netip.ParseAddr(text)
			if single != nil {
				return fmt.Errorf("trusted-proxies %.100q: want an address or a range, such as 10.0.0.0/8", text)
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		if address := prefix.Addr(); address.Is4In6() { // compared as IPv4
			prefix = netip.PrefixFrom(address.Unmap(), max(0, prefix.Bits()-96))
		}
		if prefix.Bits() == 0 {
			return fmt.Errorf("trusted-proxies %s: includes every address; name the proxy's own addresses", text)
		}
		c.proxies = append(c.proxies, prefix.Masked())
	}
	return nil
}

// Proxies returns the addresses of the proxies whose headers are trusted.
func (c *Config) Proxies() []netip.Prefix { return slices.Clone(c.proxies) }
