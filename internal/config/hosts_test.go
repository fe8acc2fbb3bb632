package config

import (
	"maps"
	"testing"
	"time"

	"lockstep/internal/git/wire"
)

func TestParseHostRequests(t *testing.T) {
	t.Parallel()
	usual, got, err := parseHostRequests([]string{"GitHub.com=32", "git.example.org:8443=4", "8", "Git.example.com:443=5", "ssh.example.com:22=6", "[::1]:80=7"})
	if want := map[string]int{
		"github.com": 32, "git.example.org:8443": 4, "git.example.com": 5, "git.example.com:443": 5, // an SSH server may listen on 443
		"ssh.example.com": 6, "ssh.example.com:22": 6, "::1": 7, "[::1]:80": 7,
	}; err != nil || usual != 8 || !maps.Equal(got, want) {
		t.Errorf("%d, %v, %v; want 8 and %v", usual, got, err, want)
	}
	for _, items := range [][]string{nil, {"16"}, {"github.com=3"}} {
		if usual, _, err := parseHostRequests(items); usual != 16 || err != nil {
			t.Errorf("%q: %d for any host, %v; want 16", items, usual, err)
		}
	}
	for _, items := range [][]string{
		{"github.com"}, {"=3"}, {"github.com=0"}, {"github.com=many"}, {"https://github.com=3"}, {"git@github.com=3"}, {"a=1", "A=2"}, {"a=1", "a:443=2"}, {"a:80=1", "a:443=2"},
		{"0"}, {"-1"}, {"1.5"}, {"many"}, {""}, {"8", "16"},
	} {
		if usual, got, err := parseHostRequests(items); err == nil {
			t.Errorf("%q: %d, %v; want an error", items, usual, got)
		}
	}
}

func TestParseHostTimeouts(t *testing.T) {
	t.Parallel()
	got, err := parseHostTimeouts([]string{"refs=90s", "pack=2m", "Git.example.org:8443/pack=10m", "ssh.example.org:22/refs=2m", "ssh.example.org:22/silence=5m"})
	own := wire.Timeouts{Refs: 2 * time.Minute, Silence: 5 * time.Minute}
	if want := map[string]wire.Timeouts{
		"": {Refs: 90 * time.Second, Pack: 2 * time.Minute}, "git.example.org:8443": {Pack: 10 * time.Minute},
		"ssh.example.org": own, "ssh.example.org:22": own,
	}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, items := range [][]string{
		{"90s"}, {"refs"}, {"refs=90"}, {"refs=0s"}, {"refs=-1m"}, {"connect=10s"}, {"github.com=10s"}, {"/refs=10s"}, {"https://github.com/refs=10s"},
		{"git@github.com/refs=10s"}, {"refs=10s", "refs=20s"}, {"a/refs=10s", "A:443/refs=20s"}, {""},
	} {
		if got, err := parseHostTimeouts(items); err == nil {
			t.Errorf("%q: %v; want an error", items, got)
		}
	}
}
