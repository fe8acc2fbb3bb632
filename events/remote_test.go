package events_test

import (
	"net/url"
	"strings"
	"testing"

	"lockstep/events"
)

func TestRemoteURL(t *testing.T) {
	for in, want := range map[string]string{
		"git@github.com:acme/widgets.git":                                   "ssh://git@github.com:/acme/widgets.git",
		"git@github.com:/acme/widgets.git":                                  "ssh://git@github.com/acme/widgets.git",
		"ada@git.local:~/widgets":                                           "ssh://ada@git.local/~/widgets",
		"git@[::1]:acme/widgets":                                            "ssh://git@[::1]:/acme/widgets",
		"git@git.local:acme/my widgets":                                     "ssh://git@git.local:/acme/my%20widgets",
		"git@git.local:2222/acme/widgets":                                   "ssh://git@git.local:/2222/acme/widgets",
		"https://github.com/acme/widgets":                                   "https://github.com/acme/widgets",
		"ssh://git@github.com:22/acme/widgets":                              "ssh://git@github.com:22/acme/widgets",
		"https://acme@dev.azure.com/acme/w/_git/w":                          "https://dev.azure.com/acme/w/_git/w",
		"https://ada@bitbucket.org/acme/w.git":                              "https://bitbucket.org/acme/w.git",
		"http://ada%40a.example@[::1]:8080/acme/w":                          "http://[::1]:8080/acme/w",
		"HTTPS://ada@github.com/acme/w":                                     "HTTPS://github.com/acme/w",
		"https://ghp_0123456789@github.com/acme/w":                          "https://ghp_0123456789@github.com/acme/w",
		"https://glpat-0123456@gitlab.com/acme/w":                           "https://glpat-0123456@gitlab.com/acme/w",
		"https://ATBB0123456@bitbucket.org/acme/w":                          "https://ATBB0123456@bitbucket.org/acme/w",
		"https://0123456789012345678901234567890123456789@git.local/acme/w": "https://0123456789012345678901234567890123456789@git.local/acme/w",
		"https://@github.com/acme/w":                                        "https://@github.com/acme/w",
		"https://github.com/acme/w@next":                                    "https://github.com/acme/w@next",
		"https://a@b@github.com/acme/w":                                     "https://a@b@github.com/acme/w",
		"https://robot:hunter2@github.com/acme/w":                           "https://robot:hunter2@github.com/acme/w",
		"hunter2:x-oauth-basic@github.com/acme/w":                           "hunter2:x-oauth-basic@github.com/acme/w",
		"robot:hunter2@github.com/acme/widgets":                             "robot:hunter2@github.com/acme/widgets",
		"git@github.com:hunter2@github.com/acme/w":                          "git@github.com:hunter2@github.com/acme/w",
		"github.com:acme/widgets":                                           "github.com:acme/widgets",
		"git@github.com":                                                    "git@github.com",
		"-oProxyCommand=id@github.com:acme/widgets":                         "-oProxyCommand=id@github.com:acme/widgets",
		"": "",
	} {
		if got := events.RemoteURL(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestCanonicalRemoteIgnoresSpelling(t *testing.T) {
	for remote, want := range map[string]string{
		"https://GitHub.com/acme/widgets.git":                                 "github.com/acme/widgets",
		"https://www.github.com./acme/widgets":                                "github.com/acme/widgets",
		"https://ada@dev.azure.com/acme/Shop/_git/my%20w":                     "dev.azure.com/acme/Shop/_git/my%20w",
		"https://dev.azure.com/acme/_git/shop":                                "dev.azure.com/acme/shop/_git/shop",
		"https://dev.azure.com/acme/DefaultCollection/Shop/_git/w":            "dev.azure.com/acme/Shop/_git/w",
		"ssh://git@ssh.dev.azure.com/v3/acme/Shop/w":                          "dev.azure.com/acme/Shop/_git/w",
		"ssh://acme@vs-ssh.visualstudio.com/v3/acme/Shop/w":                   "dev.azure.com/acme/Shop/_git/w",
		"ssh://acme@vs-ssh.visualstudio.com:22/DefaultCollection/Shop/_ssh/w": "dev.azure.com/acme/Shop/_git/w",
		"https://acme.visualstudio.com/Shop/_git/w":                           "dev.azure.com/acme/Shop/_git/w",
		"https://ACME.visualstudio.com/DefaultCollection/Shop/_git/w":         "dev.azure.com/acme/Shop/_git/w",
		"https://acme.visualstudio.com/_git/shop":                             "dev.azure.com/acme/shop/_git/shop",
		"https://dev.azure.com/acme/Shop/_apis/git/repositories":              "dev.azure.com/acme/Shop/_apis/git/repositories",
		"https://dev.azure.com/acme/_git":                                     "dev.azure.com/acme/_git",
		"https://dev.azure.com":                                               "dev.azure.com/",
		"http://github.com:80/acme/widgets/":                                  "github.com/acme/widgets",
		"https://github.com:443/acme/Widgets":                                 "github.com/acme/Widgets",
		"https://git.example.org:8443/a/b.git":                                "git.example.org:8443/a/b",
		"https://ada:pw@git.example.org/a/b.git":                              "git.example.org/a/b",
		"http://[::1]:8080/acme/widgets.git":                                  "[::1]:8080/acme/widgets",
		"https://[2001:db8::1]/acme/widgets":                                  "[2001:db8::1]/acme/widgets",
		"https://github.com//acme/widgets.git///":                             "github.com/acme/widgets",
		"https://github.com/acme/%77idgets.git":                               "github.com/acme/widgets",
		"https://github.com/acme/widgets.git.git/":                            "github.com/acme/widgets.git",
		"ssh://git@GitHub.com/acme/widgets.git":                               "github.com/acme/widgets",
		"ssh://git@github.com:22/acme/widgets":                                "github.com/acme/widgets",
		"ssh://git@github.com:/acme/widgets.git":                              "github.com/acme/widgets",
		"ssh://git@[2001:db8::1]:/acme/widgets":                               "[2001:db8::1]/acme/widgets",
		"ssh://git@github.com:443/acme/widgets.git":                           "github.com:443/acme/widgets",
		"https://github.com:22/acme/widgets":                                  "github.com:22/acme/widgets",
		"https://example.com/acme%2Fwidgets":                                  "example.com/acme%2Fwidgets", // many servers distinguish it from acme/widgets
		"https://example.com/acme/wid%0agets":                                 "example.com/acme/wid%0Agets",
		"https://example.com/acme/wid%20gets/":                                "example.com/acme/wid%20gets",
		"https://example.com/acme/wid%zzgets":                                 "",
	} {
		if got := events.CanonicalRemote(remote); got != want {
			t.Errorf("%s: got %q, want %q", remote, got, want)
		}
	}
}

func TestNewChangeAcceptsSCPLikeRemote(t *testing.T) {
	c, err := events.NewChange(events.Change{URL: "git@github.com:acme/widgets.git"})
	if err != nil || c.URL != "ssh://git@github.com:/acme/widgets.git" || c.Repo.String() != "acme/widgets" {
		t.Errorf("got %s, %s, %v", c.URL, c.Repo, err)
	}
	if _, err := events.ParseChange([]byte(`{"url":"git@github.com:acme/widgets.git"}`)); err == nil {
		t.Error("the wire format takes it too: two spellings of one remote")
	}
}

func FuzzRemoteURL(f *testing.F) {
	for _, s := range []string{"git@h:a/b", "git@[::1]:a/b", "a@b:c%2f..", "git@h:../x", "https://h/a/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u := events.RemoteURL(s)
		if u != s && (!strings.HasPrefix(u, "ssh://") || events.RemoteURL(u) != u) {
			t.Fatalf("%q became %q", s, u)
		}
	})
}

func TestHosts(t *testing.T) {
	for remote, want := range map[string]struct{ canonical, withPort string }{
		"https://Git.Example.com:443/acme/widgets.git": {"git.example.com", "git.example.com"},
		"https://git.example.com:80/acme/widgets":      {"git.example.com", "git.example.com:80"},
		"ssh://git@Git.Example.com:/acme/widgets":      {"git.example.com", "git.example.com"},
		"ssh://git@git.example.com:2222/acme/widgets":  {"git.example.com:2222", "git.example.com:2222"},
		"http://[::1]:8080/acme/widgets":               {"[::1]:8080", "[::1]:8080"},
	} {
		u, err := url.Parse(remote)
		if err != nil {
			t.Fatal(err)
		}
		if got := events.CanonicalHost(remote); got != want.canonical {
			t.Errorf("%s: canonical host %s, want %s", remote, got, want.canonical)
		}
		if got := events.HostPort(u); got != want.withPort {
			t.Errorf("%s: host and port %s, want %s", remote, got, want.withPort)
		}
	}
}
