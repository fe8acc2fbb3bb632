package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"lockstep/internal/testenv"
)

func TestScopeOf(t *testing.T) {
	for ip, want := range map[string]scope{
		"93.184.216.34": public, "2606:2800:220:1::1": public, "100.128.0.1": public, "172.32.0.1": public,
		"10.1.2.3": private, "172.16.0.1": private, "192.168.1.1": private, "127.0.0.1": private, "127.9.9.9": private, "::1": private,
		"100.64.0.1": private, "fd00:ec2::253": private, "fd00:ec2::254": never, "::ffff:10.0.0.1": private, "64:ff9b::a00:1": private, "2002:0a00:0001::": private,
		"::127.0.0.1": private, "64:ff9b:1::5db8:d822": private, "240.0.0.1": private, "fec0::1": private,
		"169.254.169.254": never, "fe80::1": never, "fe80::1%eth0": never, "::ffff:169.254.169.254": never, "64:ff9b::a9fe:a9fe": never,
		"64:ff9b:1::a9fe:a9fe": never, "2002:a9fe:a9fe::": never, "::169.254.169.254": never, "224.0.0.1": never, "ff02::1": never,
		"168.63.129.16": private, "168.63.129.17": public, "::ffff:0:a9fe:a9fe": never, "::ffff:0:a00:1": private,
		"100.100.100.200": never, "100.100.100.201": private, "192.0.0.192": never, "192.0.0.191": private, "fd20:ce::254": never, "fd20:ce::253": private,
		"::ffff:100.100.100.200": never, "64:ff9b::6464:64c8": never, "2002:6464:64c8::": never, "64:ff9b::c000:c0": never,
		"64:ff9b::5db8:d822": public, "2002:5db8:d822::1": public, "64:ff9b::c0a8:101": private, "2002:c0a8:101::1": private,
		"2001:0:5db8:d822::a247:27dd": private, "2001::1": never, "2001:0:a9fe:a9fe::a247:27dd": never, "2001:0:5db8:d822::5601:5601": never,
		"2001:1::1": public, "2001:4860:4860::8888": public,
		"0.0.0.0": never, "0.1.2.3": never, "::": never, "::ffff:0.0.0.0": never, "255.255.255.255": never,
	} {
		if got := scopeOf(netip.MustParseAddr(ip)); got != want {
			t.Errorf("%s: got %d, want %d", ip, got, want)
		}
	}
}

func TestPolicy(t *testing.T) {
	const public, inside, metadata = "93.184.216.34", "10.0.0.5", "169.254.169.254"
	for name, tc := range map[string]struct {
		hosts    []string
		host, ip string
		own      bool // allowed for the operator's URLs
		foreign  bool // allowed for other URLs
	}{
		"anything public":            {nil, "git.example.org", public, true, true},
		"inside":                     {nil, "git.example.org", inside, true, false},
		"loopback":                   {nil, "localhost", "127.0.0.1", true, false},
		"metadata":                   {nil, "git.example.org", metadata, false, false},
		"metadata, listed":           {[]string{"169.254.0.0/16", "git.example.org"}, "git.example.org", metadata, false, false},
		"mapped metadata":            {nil, "x", "::ffff:169.254.169.254", false, false},
		"listed":                     {[]string{"git.example.org"}, "git.example.org", public, true, true},
		"listed, and inside":         {[]string{"git.example.org"}, "Git.Example.ORG.", inside, true, true},
		"not listed":                 {[]string{"git.example.org"}, "example.org", public, false, false},
		"a wildcard":                 {[]string{"*.example.org"}, "git.example.org", public, true, true},
		"a wildcard, deeper":         {[]string{"*.example.org"}, "a.git.example.org", public, true, true},
		"a wildcard's own name":      {[]string{"*.example.org"}, "example.org", public, false, false},
		"a name that ends alike":     {[]string{"*.example.org"}, "evilexample.org", public, false, false},
		"an address":                 {[]string{inside}, "git.corp", inside, true, true},
		"a mapped address":           {[]string{inside}, "git.corp", "::ffff:" + inside, true, true},
		"a range":                    {[]string{"10.0.0.0/8"}, "git.corp", inside, true, true},
		"outside of the range":       {[]string{"10.0.0.0/8"}, "git.corp", "11.0.0.1", false, false},
		"matching port":              {[]string{"git.corp:443"}, "git.corp", inside, true, true},
		"another port":               {[]string{"git.corp:22"}, "git.corp", inside, false, false},
		"a range and a port":         {[]string{"[fd00::/8]:443"}, "git.corp", "fd00::1", true, true},
		"a range and another port":   {[]string{"[fd00::/8]:22"}, "git.corp", "fd00::1", false, false},
		"an address that is the URL": {[]string{"[fd00::1]:443"}, "fd00::1", "fd00::1", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			list := testenv.Must(ParseHosts("hosts", tc.hosts))(t)
			for foreign, want := range map[bool]bool{false: tc.own, true: tc.foreign} {
				err := Policy{Hosts: list, Foreign: foreign}.check(tc.host, "443", netip.MustParseAddr(tc.ip))
				if (err == nil) != want {
					t.Errorf("foreign %v: %v", foreign, err)
				}
				if err != nil && !strings.Contains(err.Error(), "hosts") {
					t.Errorf("the error does not name the setting: %v", err)
				}
			}
		})
	}
}

// Names for a proxy are checked without resolving them.
func TestNamesForAProxy(t *testing.T) {
	for host, want := range map[string]scope{
		"git.example.org": public, "git.example.org.": public, "10.example.org": public, "my_git": public, "x0.org": public,
		"localhost": private, "LOCALHOST.": private, "a.localhost": private, "10.0.0.1": private, "10.0.0.1.": private,
		"169.254.169.254": never, "169.254.169.254.": never, "fe80::1%eth0": never, "::ffff:169.254.169.254": never,
		"2852039166": never, "0xA9FEA9FE": never, "0251.0376.0251.0376": never, "169.254.43518": never, "0xa9.0xfe.0xa9.0xfe": never,
		"1.0x": never, "\uff11\uff16\uff19.254.169.254": never, "g\u00eet.example.org": never, "": never, ".": never,
	} {
		for foreign, allowed := range map[bool]bool{false: want < never, true: want == public} {
			if err := (Policy{Foreign: foreign}).CheckName(host, "443"); (err == nil) != allowed {
				t.Errorf("%q, foreign %v: %v", host, foreign, err)
			}
		}
	}
	listed := Policy{Hosts: testenv.Must(ParseHosts("hosts", []string{"localhost", "0.0.0.0/0"}))(t), Foreign: true}
	if err := listed.CheckName("localhost", "443"); err != nil {
		t.Error(err)
	}
	if err := listed.CheckName("2852039166", "443"); err == nil {
		t.Error("a number was allowed")
	}
}

func TestInvalidHosts(t *testing.T) {
	for _, entry := range []string{"", "*", "a b", "https://git.example.org", "git.example.org:", "git.example.org:0", "x:99999", "a/b", "*.*.org", "10.0.0.0/40", "user@host", ".org"} {
		if _, err := ParseHosts("hosts", []string{entry}); err == nil || !strings.Contains(err.Error(), "hosts") {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

func TestSameOrigin(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"http://h/a", "http://H:80/b"}:           true,
		{"https://h/a", "https://h:443/b"}:        true,
		{"http://h/a", "https://h/a"}:             true,
		{"https://h/a", "http://h/a"}:             false,
		{"http://h/a", "http://h:6379/a"}:         false,
		{"http://h:8080/a", "https://h:443/a"}:    false,
		{"http://h/a", "http://sub.h/a"}:          false,
		{"http://h:8080/a", "https://h:8443/a"}:   false,
		{"https://h/a", "https://h.evil.org:443"}: false,
	} {
		if got := SameOrigin(testenv.Must(url.Parse(pair[0]))(t), testenv.Must(url.Parse(pair[1]))(t)); got != want {
			t.Errorf("%v: %v", pair, got)
		}
	}
}

// A name may resolve to another address between a check and dialling.
func TestAddressIsCheckedWhenDialling(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_, err := Policy{Foreign: true}.Dial(t.Context(), "tcp", net.JoinHostPort("localhost", port))
	if _, ok := errors.AsType[*Fault](err); !ok {
		t.Errorf("got %v", err)
	}
	conn := testenv.Must(Policy{}.Dial(t.Context(), "tcp", net.JoinHostPort("localhost", port)))(t)
	_ = conn.Close()
}

// A name resolves to a public address at first, and to a private one when it is dialled.
func TestDNSRebinding(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	var asked atomic.Int64
	nameServer := serveNames(t, func() [][4]byte {
		if asked.Add(1) == 1 {
			return [][4]byte{{93, 184, 216, 34}}
		}
		return [][4]byte{{127, 0, 0, 1}}
	})
	resolveBy(t, nameServer)
	const host = "rebinding.example.org"
	first := testenv.Must(net.DefaultResolver.LookupNetIP(t.Context(), "ip4", host))(t)
	if err := (Policy{Foreign: true}).check(host, port, first[0]); err != nil {
		t.Fatalf("first: %v", err)
	}
	_, err := Policy{Foreign: true}.Dial(t.Context(), "tcp4", net.JoinHostPort(host, port))
	if _, ok := errors.AsType[*Fault](err); !ok {
		t.Errorf("then: %v", err)
	}
	if asked.Load() < 2 {
		t.Error("the name was not resolved when dialling")
	}
}

// Only the allowed addresses of a name are dialled.
func TestNameWithSeveralAddresses(t *testing.T) {
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	addresses := [][4]byte{{169, 254, 169, 254}, {0, 0, 0, 0}, {127, 0, 0, 1}}
	resolveBy(t, serveNames(t, func() [][4]byte { return addresses }))
	foreign := Policy{Foreign: true}
	for _, host := range []string{"several.example.org", "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "0", "localhost", "127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::1", "::"} {
		if _, err := foreign.Dial(t.Context(), "tcp", net.JoinHostPort(host, port)); err == nil {
			t.Errorf("%s was dialled", host)
		}
	}
	foreign.Hosts = testenv.Must(ParseHosts("hosts", []string{"127.0.0.0/8"}))(t)
	conn := testenv.Must(foreign.Dial(t.Context(), "tcp4", net.JoinHostPort("several.example.org", port)))(t)
	if got := conn.RemoteAddr().String(); got != listener.Addr().String() {
		t.Errorf("dialled %s", got)
	}
	_ = conn.Close()
}

// resolveBy resolves names with one server until the test ends.
func resolveBy(t *testing.T, nameServer string) {
	usual := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = usual })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", nameServer)
	}}
}

// serveNames starts a DNS server that resolves every name to the same IPv4 addresses.
func serveNames(t *testing.T, addresses func() [][4]byte) string {
	conn := testenv.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buf[:n]) != nil {
				continue
			}
			answer := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true},
				Questions: query.Questions,
			}
			if q := query.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, a := range addresses() {
					answer.Answers = append(answer.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: a},
					})
				}
			}
			if packed, err := answer.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

func TestCheckPrefix(t *testing.T) {
	for prefix, valid := range map[string]bool{
		"https://git.example.com":                         true,
		"https://git.example.com/acme/":                   true,
		"ssh://git@git.example.com:2222/acme":             true,
		"https://git.example.com/acme/my%20web+(1).git":   true,
		"https://git.example.com/a,https://git.example/b": false,
		"https://git.example.com/acme/,":                  false,
		"https://*.example.com/":                          false,
		`"https://git.example.com/"`:                      false,
		"'https://git.example.com/'":                      false,
		"https://git.example.com/;":                       false,
		"<https://git.example.com/>":                      false,
		"git.example.com/acme":                            false,
		"git@git.example.com:acme":                        false,
		"https:///acme":                                   false,
		"https://git.example.com/?a=b":                    false,
		"https://ada:hunter2@git.example.com/":            false,
	} {
		if err := CheckPrefix(prefix); (err == nil) != valid || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", prefix, err)
		}
	}
}
