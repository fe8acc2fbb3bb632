package config

import (
	"maps"
	"testing"
)

func TestParseHostLimits(t *testing.T) {
	t.Parallel()
	got, err := parseHostLimits([]string{"GitHub.com=32", "git.example.org:8443=4", "Git.example.com:443=5", "ssh.example.com:22=6", "[::1]:80=7"})
	if want := map[string]int{
		"github.com": 32, "git.example.org:8443": 4, "git.example.com": 5, "git.example.com:443": 5, // an SSH server may listen on 443
		"ssh.example.com": 6, "ssh.example.com:22": 6, "::1": 7, "[::1]:80": 7,
	}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, pairs := range [][]string{
		{"github.com"}, {"=3"}, {"github.com=0"}, {"github.com=many"}, {"https://github.com=3"}, {"git@github.com=3"}, {"a=1", "A=2"}, {"a=1", "a:443=2"}, {"a:80=1", "a:443=2"},
	} {
		if got, err := parseHostLimits(pairs); err == nil {
			t.Errorf("%q: %v; want an error", pairs, got)
		}
	}
}
