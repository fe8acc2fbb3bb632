package egress

import (
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

func TestRewrites(t *testing.T) {
	all := testenv.Must(ParseRewrites([]string{
		"https://github.com/=https://mirror.example.org/github/",
		"https://github.com/acme/=ssh://git@ssh.github.com:443/acme/",
		"ssh://git@github.com/=https://mirror.example.org/github/",
	}))(t)
	for written, want := range map[string]string{
		"https://github.com/ada/engine.git":       "https://mirror.example.org/github/ada/engine.git",
		"HTTPS://GitHub.com/ada/engine":           "https://mirror.example.org/github/ada/engine",
		"https://github.com/acme/widgets":         "ssh://git@ssh.github.com:443/acme/widgets", // the longest
		"https://github.com/ACME/widgets":         "ssh://git@ssh.github.com:443/acme/widgets",
		"https://github.com/acmes/widgets":        "https://mirror.example.org/github/acmes/widgets",
		"ssh://git@github.com/ada/engine.git":     "https://mirror.example.org/github/ada/engine.git",
		"ssh://git@github.com:/ada/engine.git":    "https://mirror.example.org/github/ada/engine.git",
		"ssh://git@example.org:/ada/engine.git":   "ssh://git@example.org:/ada/engine.git",
		"https://github.com/ada/engine:/x":        "https://mirror.example.org/github/ada/engine:/x",
		"https://github.com.example.org/ada/x":    "https://github.com.example.org/ada/x",
		"https://mirror.example.org/github/ada/x": "https://mirror.example.org/github/ada/x",
		"http://github.com/ada/x":                 "http://github.com/ada/x",
		"https://github.com":                      "https://github.com",
		"":                                        "",
	} {
		if got := all.Asked(written); got != want || all.Asked(got) != want {
			t.Errorf("%s: %s, want %s", written, got, want)
		}
	}
	for asked, want := range map[string][]string{
		"https://mirror.example.org/github/ada/x":  {"https://github.com/ada/x", "ssh://git@github.com/ada/x"},
		"https://mirror.example.org/github/acme/x": {"ssh://git@github.com/acme/x"}, // https is asked elsewhere
		"ssh://git@ssh.github.com:443/acme/x":      {"https://github.com/acme/x"},
		"https://Mirror.example.org/github/acme/x": {"ssh://git@github.com/acme/x"},
		"https://github.com/ada/x":                 nil,
	} {
		if got := all.WithWritten([]string{asked, asked}); !slices.Equal(got, append([]string{asked, asked}, want...)) {
			t.Errorf("%s: %q, want %q", asked, got, want)
		}
	}
}

func TestInvalidRewrites(t *testing.T) {
	for item, want := range map[string]string{
		"https://github.com/":                                                    "URL prefixes",
		"https://github.com/=":                                                   "URL prefixes",
		"https://github.com=https://mirror.example.org/":                         "slash",
		"https://github.com/=https://mirror.example.org/github":                  "slash",
		"ssh://git@github.com:/=https://github.com/":                             "empty port",
		"git@github.com:=https://github.com/":                                    "URL prefixes",
		"https://github.com/=https://ada:hunter2@mirror.example.org/":            "password",
		"https://git.example/=https://git.example/mirrors/":                      "final URL",
		"https://a.example/=https://b.example/ https://b.example/x/=http://c/":   "final URL",
		"https://a.example/x/=https://b.example/y/ https://b.example/=http://c/": "final URL",
	} {
		if _, err := ParseRewrites(strings.Fields(item)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", item, err, want)
		}
	}
}
