package gitrepo

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	"lockstep/events"
)

func hashHost(name string) string { return knownhosts.HashHostname(name) }

func TestScopeOf(t *testing.T) {
	for ip, want := range map[string]scope{
		"93.184.216.34": public, "2606:2800:220:1::1": public, "100.128.0.1": public, "172.32.0.1": public,
		"10.1.2.3": private, "172.16.0.1": private, "192.168.1.1": private, "127.0.0.1": private, "127.9.9.9": private, "::1": private,
		"100.64.0.1": private, "fd00:ec2::254": private, "::ffff:10.0.0.1": private, "64:ff9b::a00:1": private, "2002:0a00:0001::": private,
		"::127.0.0.1": private, "64:ff9b:1::5db8:d822": private, "240.0.0.1": private, "fec0::1": private,
		"169.254.169.254": never, "fe80::1": never, "fe80::1%eth0": never, "::ffff:169.254.169.254": never, "64:ff9b::a9fe:a9fe": never,
		"64:ff9b:1::a9fe:a9fe": never, "2002:a9fe:a9fe::": never, "::169.254.169.254": never, "224.0.0.1": never, "ff02::1": never,
		"168.63.129.16": private, "168.63.129.17": public, "::ffff:0:a9fe:a9fe": never, "::ffff:0:a00:1": private,
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
		own      bool // the operator's words may name it
		foreign  bool // a webhook's may
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
		"the port":                   {[]string{"git.corp:443"}, "git.corp", inside, true, true},
		"another port":               {[]string{"git.corp:22"}, "git.corp", inside, false, false},
		"a range and a port":         {[]string{"[fd00::/8]:443"}, "git.corp", "fd00::1", true, true},
		"a range and another port":   {[]string{"[fd00::/8]:22"}, "git.corp", "fd00::1", false, false},
		"an address that is the URL": {[]string{"[fd00::1]:443"}, "fd00::1", "fd00::1", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			list := must(parseHosts(tc.hosts))(t)
			for foreign, want := range map[bool]bool{false: tc.own, true: tc.foreign} {
				err := policy{list, foreign}.check(tc.host, "443", netip.MustParseAddr(tc.ip))
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

// TestNamesForAProxy are checked as far as they can be: the proxy resolves them.
func TestNamesForAProxy(t *testing.T) {
	for host, want := range map[string]scope{
		"git.example.org": public, "git.example.org.": public, "10.example.org": public, "my_git": public, "x0.org": public,
		"localhost": private, "LOCALHOST.": private, "a.localhost": private, "10.0.0.1": private, "10.0.0.1.": private,
		"169.254.169.254": never, "169.254.169.254.": never, "fe80::1%eth0": never, "::ffff:169.254.169.254": never,
		"2852039166": never, "0xA9FEA9FE": never, "0251.0376.0251.0376": never, "169.254.43518": never, "0xa9.0xfe.0xa9.0xfe": never,
		"1.0x": never, "\uff11\uff16\uff19.254.169.254": never, "g\u00eet.example.org": never, "": never, ".": never,
	} {
		for foreign, allowed := range map[bool]bool{false: want < never, true: want == public} {
			if err := (policy{foreign: foreign}).checkName(host, "443"); (err == nil) != allowed {
				t.Errorf("%q, foreign %v: %v", host, foreign, err)
			}
		}
	}
	listed := policy{hosts: must(parseHosts([]string{"localhost", "0.0.0.0/0"}))(t), foreign: true}
	if err := listed.checkName("localhost", "443"); err != nil {
		t.Error(err)
	}
	if err := listed.checkName("2852039166", "443"); err == nil {
		t.Error("a number passes")
	}
}

func TestHostsThatAreNone(t *testing.T) {
	for _, entry := range []string{"", "*", "a b", "https://git.example.org", "git.example.org:", "git.example.org:0", "x:99999", "a/b", "*.*.org", "10.0.0.0/40", "user@host", ".org"} {
		if _, err := parseHosts([]string{entry}); err == nil || !strings.Contains(err.Error(), "hosts") {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

// TestForeignURLs has a webhook name a server on this machine, over every way to reach one.
func TestForeignURLs(t *testing.T) {
	w := newWorld(t)
	server := w.withSSH()
	w.create(map[string]string{"a": "1"})
	w.sync("") // a connection is left in the pool, and must not serve the foreign request
	_, err := w.volume.Remove(t.Context(), RemoveRequest{Repo: repoPath(t, widgets), URL: w.git.URL(widgets), Fence: w.fence.Add(1), Foreign: true})
	mustFail(t, err, events.ClassConfig, events.Permanent)
	for name, req := range map[string]SyncRequest{"http": w.request(""), "ssh": w.sshRequest(server, "")} {
		t.Run(name, func(t *testing.T) {
			asked := w.git.Stats(widgets)
			req.Foreign, req.Fence = true, w.fence.Add(1)
			req.Repo = repoPath(t, "acme/over-"+name)
			_, err := w.volume.Sync(t.Context(), req)
			mustFail(t, err, events.ClassConfig, events.Permanent)
			if !strings.Contains(err.Error(), "127.0.0.1 ") || !strings.Contains(err.Error(), "setting hosts") {
				t.Errorf("error: %v", err)
			}
			if now := w.git.Stats(widgets); now.InfoRefs != asked.InfoRefs || now.UploadPacks != asked.UploadPacks {
				t.Error("the server was asked")
			}
			listed := w.open(t.TempDir(), Config{Net: NetConfig{Hosts: []string{"127.0.0.0/8"}}})
			must(listed.Sync(t.Context(), req))(t)
		})
	}
}

// TestALinkLocalAddress is refused before a packet leaves.
func TestALinkLocalAddress(t *testing.T) {
	w := newWorld(t)
	listed := w.open(t.TempDir(), Config{Net: NetConfig{Hosts: []string{"169.254.0.0/16", "::/0"}}})
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "0.0.0.0", "[64:ff9b::a9fe:a9fe]"} {
		for _, v := range []*Volume{w.volume, listed} {
			req := w.request("")
			req.URL = "http://" + host + "/acme/widgets"
			req.Repo = repoPath(t, "acme/n"+strings.NewReplacer("[", "", "]", "", ":", "-").Replace(host))
			_, err := v.Sync(soon(t), req)
			mustFail(t, err, events.ClassConfig, events.Permanent)
		}
	}
}

// TestARedirectInside has a public server, as it were, lead to a private one.
func TestARedirectInside(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	moved := httptest.NewServer(http.RedirectHandler(w.git.URL(widgets)+"/info/refs?service=git-upload-pack", http.StatusFound))
	defer moved.Close()
	req := w.request("")
	req.URL = moved.URL + "/acme/widgets.git"
	_, err := w.volume.Sync(t.Context(), req)
	mustFail(t, err, events.ClassConfig, events.Permanent)
	if stats := w.git.Stats(widgets); stats.InfoRefs != 0 {
		t.Error("the server inside was asked")
	}
	from, to := hostOf(t, moved.URL), hostOf(t, w.git.URL(widgets))
	one := w.open(t.TempDir(), Config{Net: NetConfig{Hosts: []string{from}}})
	_, err = one.Sync(t.Context(), req)
	mustFail(t, err, events.ClassConfig, events.Permanent)
	both := w.open(t.TempDir(), Config{Net: NetConfig{Hosts: []string{from, to}}})
	must(both.Sync(t.Context(), req))(t)
}

func hostOf(t *testing.T, rawURL string) string { return must(url.Parse(rawURL))(t).Host }

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
		if got := sameOrigin(must(url.Parse(pair[0]))(t), must(url.Parse(pair[1]))(t)); got != want {
			t.Errorf("%v: %v", pair, got)
		}
	}
}

// TestTheAddressIsCheckedWhenDialled, not before: a name may resolve to another the next moment.
func TestTheAddressIsCheckedWhenDialled(t *testing.T) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_, err := policy{foreign: true}.dial(t.Context(), "tcp", net.JoinHostPort("localhost", port))
	if _, ok := errors.AsType[*hostFault](err); !ok {
		t.Errorf("got %v", err)
	}
	conn := must(policy{}.dial(t.Context(), "tcp", net.JoinHostPort("localhost", port)))(t)
	_ = conn.Close()
}
