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
var notIdentity = []string{"authorization", "cookie", "host", "origin", "referer", "user-agent", "x-forwarded-for",
	"x-forwarded-host", "x-forwarded-proto"}

// Admin is the setting admin-header, parsed.
type Admin struct {
	Header string
	Users  []string // empty accepts any user that the proxy names
}

// parseAdmin parses a header, optionally with the users to accept: X-Forwarded-User=ada,bob. An empty list of
// users is an error, since it would accept any.
func parseAdmin(text string) (Admin, error) {
	header, users, listed := strings.Cut(text, "=")
	if !headerName.MatchString(header) || slices.Contains(notIdentity, strings.ToLower(header)) {
		return Admin{}, fmt.Errorf("admin-header %.100q: want a header that names the user, such as X-Forwarded-User", header)
	}
	admin := Admin{Header: header, Users: separate([]string{users})}
	if listed && len(admin.Users) == 0 || strings.Contains(users, "=") {
		return Admin{}, fmt.Errorf("admin-header %.100q: want the users to accept after =, "+
			"such as X-Forwarded-User=ada,bob", text)
	}
	return admin, nil
}

// checkProxies parses admin-header and trusted-proxies and returns an error if only one of them is set. A
// reader needs no admin-header: it asks trusted proxies whether a request came over TLS.
func (c *Config) checkProxies() (err error) {
	switch {
	case c.AdminHeader != "" && len(c.TrustedProxies) == 0:
		return fmt.Errorf("admin-header %s: any client could send it; set trusted-proxies to the addresses "+
			"of the proxy", c.AdminHeader)
	case c.AdminHeader == "" && len(c.TrustedProxies) > 0 && !c.Has(RoleReader):
		return errors.New("trusted-proxies: set admin-header to the header in which the proxy names the user, " +
			"or add the role reader")
	case c.AdminHeader != "":
		if c.admin, err = parseAdmin(c.AdminHeader); err != nil {
			return err
		}
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

// Admin returns the header in which a trusted proxy names the user, and who may be named.
func (c *Config) Admin() Admin { return c.admin }

// Proxies returns the addresses of the proxies whose headers are trusted.
func (c *Config) Proxies() []netip.Prefix { return slices.Clone(c.proxies) }
