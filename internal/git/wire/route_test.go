package wire

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

func TestInvalidConfig(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	testenv.Must(0, os.WriteFile(empty, []byte("no certificate"), 0o600))(t)
	for name, tc := range map[string]struct {
		cfg  Config
		says string
	}{
		"no CA file":     {Config{CAFile: "/nonexistent"}, "ca-file"},
		"an empty one":   {Config{CAFile: empty}, "ca-file: no certificate in " + empty},
		"no known hosts": {Config{KnownHosts: "/nonexistent"}, "known-hosts"},
		"no proxy":       {Config{Proxy: "proxy:3128"}, "proxy"},
		"another scheme": {Config{Proxy: "ftp://u:" + secret + "@proxy"}, "proxy"},
		"no host":        {Config{Hosts: []string{"a b"}}, "hosts"},
	} {
		err := tc.cfg.Check()
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProxyOfEnvironment(t *testing.T) {
	n := testenv.Must(NewNetwork(Config{}))(t)
	defer n.Close()
	via := testenv.Must(url.Parse("http://proxy.test:3128"))(t)
	n.proxyFor = func(*http.Request) (*url.URL, error) { return via, nil }
	r := &route{net: n}
	req := testenv.Must(http.NewRequest(http.MethodGet, "https://git.test/a/b", nil))(t)
	if pool := testenv.Must(r.pool(req))(t); pool != http.RoundTripper(n.proxied) {
		t.Error("the proxy is not used")
	}
}
