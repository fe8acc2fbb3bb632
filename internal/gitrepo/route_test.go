package gitrepo

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNetConfigsThatAreNone(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	must(0, os.WriteFile(empty, []byte("no certificate"), 0o600))(t)
	for name, tc := range map[string]struct {
		cfg  NetConfig
		says string
	}{
		"no CA file":     {NetConfig{CAFile: "/nonexistent"}, "ca-file"},
		"an empty one":   {NetConfig{CAFile: empty}, "ca-file: " + empty + " holds no certificate"},
		"no known hosts": {NetConfig{KnownHosts: "/nonexistent"}, "known-hosts"},
		"no proxy":       {NetConfig{Proxy: "proxy:3128"}, "proxy"},
		"another scheme": {NetConfig{Proxy: "ftp://u:" + secret + "@proxy"}, "proxy"},
		"no host":        {NetConfig{Hosts: []string{"a b"}}, "hosts"},
	} {
		err := tc.cfg.Check()
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheEnvironmentsProxy(t *testing.T) {
	n := must(newNetwork(NetConfig{}))(t)
	defer n.close()
	via := must(url.Parse("http://proxy.test:3128"))(t)
	n.proxyFor = func(*http.Request) (*url.URL, error) { return via, nil }
	r := &route{net: n}
	req := must(http.NewRequest(http.MethodGet, "https://git.test/a/b", nil))(t)
	if pool := must(r.pool(req))(t); pool != http.RoundTripper(n.proxied) {
		t.Error("the proxy is passed over")
	}
}
