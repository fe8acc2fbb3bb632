package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// headerName is what a header may be called.
var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

// notIdentity are headers that every client sends, or that say something else.
var notIdentity = []string{"authorization", "cookie", "host", "origin", "referer", "user-agent", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}

// checkProxies reads who may name a user. Half of it would be open to everybody, or do nothing.
func (c *Config) checkProxies() error {
	switch {
	case c.AdminHeader != "" && len(c.TrustedProxies) == 0:
		return fmt.Errorf("admin-header %s: anybody could send it; set trusted-proxies to the addresses of the proxy that does", c.AdminHeader)
	case c.AdminHeader == "" && len(c.TrustedProxies) > 0:
		return errors.New("trusted-proxies: set admin-header to the header in which they name the user")
	case c.AdminHeader == "" && len(c.AdminUsers) > 0:
		return errors.New("admin-users: set admin-header and trusted-proxies, else nobody is one of them")
	case c.AdminHeader != "" && (!headerName.MatchString(c.AdminHeader) || slices.Contains(notIdentity, strings.ToLower(c.AdminHeader))):
		return fmt.Errorf("admin-header %.100q: want a header that says who the user is, as X-Forwarded-User", c.AdminHeader)
	}
	c.proxies = nil
	for _, text := range c.TrustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address, single := netip.ParseAddr(text)
			if single != nil {
				return fmt.Errorf("trusted-proxies %.100q: want an address or a range, as in 10.0.0.0/8", text)
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		if address := prefix.Addr(); address.Is4In6() { // as IPv4 is compared, and was meant
			prefix = netip.PrefixFrom(address.Unmap(), max(0, prefix.Bits()-96))
		}
		if prefix.Bits() == 0 {
			return fmt.Errorf("trusted-proxies %s: that is everybody; name the proxy's own addresses", text)
		}
		c.proxies = append(c.proxies, prefix.Masked())
	}
	return nil
}

// Proxies are the addresses of those whose admin-header is believed.
func (c *Config) Proxies() []netip.Prefix { return slices.Clone(c.proxies) }
