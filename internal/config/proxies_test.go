package config_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/config"
)

func TestAdminHeaderRequiresTrustedProxies(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"header without proxies": {[]string{"--admin-header", "X-Forwarded-User"}, "set trusted-proxies"},
		"proxies without header": {[]string{"--trusted-proxies", "10.0.0.0/8"}, "set admin-header"},
		"users without header":   {[]string{"--admin-header", "=ada", "--trusted-proxies", "10.0.0.0/8"}, "want a header that names the user"},
		"no users after =":       {[]string{"--admin-header", "X-Forwarded-User=", "--trusted-proxies", "10.0.0.0/8"}, "want the users to accept"},
		"only a comma after =":   {[]string{"--admin-header", "X-Forwarded-User= ,", "--trusted-proxies", "10.0.0.0/8"}, "want the users to accept"},
		"two headers":            {[]string{"--admin-header", "X-Forwarded-User=ada,X-Auth=bob", "--trusted-proxies", "10.0.0.0/8"}, "want the users to accept"},
		"users without =":        {[]string{"--admin-header", "X-Forwarded-User,ada", "--trusted-proxies", "10.0.0.0/8"}, "want a header that names the user"},
		"users, no proxies":      {[]string{"--admin-header", "X-Forwarded-User=ada"}, "set trusted-proxies"},
		"header of every client": {[]string{"--admin-header", "User-Agent", "--trusted-proxies", "10.0.0.0/8"}, "want a header that names the user"},
		"invalid header name":    {[]string{"--admin-header", "X User", "--trusted-proxies", "10.0.0.0/8"}, "want a header that names the user"},
		"all of IPv4":            {[]string{"--admin-header", "X-Forwarded-User", "--trusted-proxies", "0.0.0.0/0"}, "includes every address"},
		"all of IPv6":            {[]string{"--admin-header", "X-Forwarded-User", "--trusted-proxies", "10.0.0.0/8,::/0"}, "includes every address"},
		"all of IPv4, mapped":    {[]string{"--admin-header", "X-Forwarded-User", "--trusted-proxies", "::ffff:0.0.0.0/96"}, "includes every address"},
		"host name":              {[]string{"--admin-header", "X-Forwarded-User", "--trusted-proxies", "proxy.example"}, "want an address or a range"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := config.Load(flags(t, tc.args...), "", nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	c, err := config.Load(flags(t), "", []string{"LOCKSTEP_TRUSTED_PROXIES=10.1.2.3/8, ::1 ::ffff:192.0.2.1 ::ffff:172.16.0.0/108", "LOCKSTEP_ADMIN_HEADER=X-Forwarded-User=ada, bob"})
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("172.16.0.0/12")}
	if got := c.Proxies(); !slices.Equal(got, want) || c.Admin().Header != "X-Forwarded-User" || !slices.Equal(c.Admin().Users, []string{"ada", "bob"}) {
		t.Errorf("proxies %v, admin %v", got, c.Admin())
	}
	c, err = config.Load(flags(t, "--admin-header", "X-Forwarded-User", "--trusted-proxies", "::1"), "", nil)
	if err != nil || c.Admin().Header != "X-Forwarded-User" || len(c.Admin().Users) != 0 {
		t.Errorf("admin %v, %v", c.Admin(), err)
	}
}
