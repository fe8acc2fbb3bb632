package credential_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
)

func folder(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func none(string) string { return "" }

func TestCredentialIsLimitedToItsPrefixes(t *testing.T) {
	dir := folder(t, "ci", map[string]string{"username": "bot\n", "password": "s3cret\n",
		"urls": "https://git.example.com/acme\nhttps://other.example.com/one/repo.git\n"})
	store := credential.NewStore(dir, none)
	for remote, allowed := range map[string]bool{
		"https://git.example.com/acme/widgets.git":       true,
		"https://GIT.example.com/acme/widgets.git":       true,
		"https://other.example.com/one/repo.git":         true,
		"https://git.example.com/acmeevil/widgets.git":   false,
		"https://git.example.com/other/widgets.git":      false,
		"http://git.example.com/acme/widgets.git":        false,
		"https://git.example.com:444/acme/widgets.git":   false,
		"https://git.example.com.evil/acme/widgets.git":  false,
		"https://evil/https://git.example.com/acme/x":    false,
		"https://git.example.com/acme/../other/x.git":    false,
		"https://git.example.com/acme/%2e%2e/other/x":    false,
		"https://git.example.com%2f@evil.example/acme/x": false,
	} {
		secret, err := store.Resolve(t.Context(), "ci", remote)
		if (err == nil) != allowed {
			t.Errorf("%s: error %v, want allowed %v", remote, err, allowed)
		}
		if allowed && secret != (wire.Auth{Name: "ci", Username: "bot", Password: "s3cret"}) {
			t.Errorf("%s: another secret", remote)
		}
		if err != nil && (events.DispositionOf(err) != events.Permanent || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s: %v", remote, err)
		}
	}
}

func TestPrefixesOfSSHRemotes(t *testing.T) {
	dir := folder(t, "ci", map[string]string{"sshKey": "s3cret", "knownHosts": "h ssh-ed25519 AAAA\n",
		"urls": "ssh://git@git.example.com/acme/ ssh://any.example.com:2222/ https://git.example.com:443/acme"})
	store := credential.NewStore(dir, none)
	for remote, allowed := range map[string]bool{
		"ssh://git@git.example.com/acme/widgets.git":    true,
		"ssh://git@git.example.com:22/acme/widgets.git": true,
		"https://git.example.com/acme/widgets.git":      true,
		"ssh://git@git.example.com:/acme/widgets.git":   true,
		"ssh://root@git.example.com/acme/widgets.git":   false,
		"ssh://root@git.example.com:/acme/widgets.git":  false,
		"ssh://git@git.example.com:/other/widgets.git":  false,
		"ssh://git.example.com/acme/widgets.git":        false,
		"ssh://git@git.example.com/other/widgets.git":   false,
		"ssh://git@git.example.com:23/acme/widgets.git": false,
		"ssh://git@evil.example/acme/widgets.git":       false,
		"http://git.example.com/acme/widgets.git":       false,
		"ssh://ada@any.example.com:2222/a/b":            true,
		"ssh://ada@any.example.com/a/b":                 false,
	} {
		secret, err := store.Resolve(t.Context(), "ci", remote)
		if (err == nil) != allowed {
			t.Errorf("%s: error %v, want allowed %v", remote, err, allowed)
		}
		if allowed && secret != (wire.Auth{Name: "ci", SSHKey: "s3cret", KnownHosts: "h ssh-ed25519 AAAA"}) {
			t.Errorf("%s: another secret", remote)
		}
	}
}

func TestSSHKeyFromVariables(t *testing.T) {
	env := map[string]string{
		"LOCKSTEP_CREDENTIAL_CI_SSH_KEY": "k", "LOCKSTEP_CREDENTIAL_CI_SSH_KEY_PASSPHRASE": "p",
		"LOCKSTEP_CREDENTIAL_CI_KNOWN_HOSTS": "h", "LOCKSTEP_CREDENTIAL_CI_URLS": "ssh://h/",
	}
	secret, err := credential.NewStore("", func(name string) string { return env[name] }).Resolve(t.Context(), "ci", "ssh://git@h/a/b")
	if err != nil || secret != (wire.Auth{Name: "ci", SSHKey: "k", SSHKeyPassphrase: "p", KnownHosts: "h"}) {
		t.Errorf("error %v, or another secret", err)
	}
}

func TestFilesTakePrecedenceOverVariables(t *testing.T) {
	env := map[string]string{
		"LOCKSTEP_CREDENTIAL_MY_APP_BEARER_TOKEN": "from-env",
		"LOCKSTEP_CREDENTIAL_MY_APP_URLS":         "https://git.example.com/",
	}
	getenv := func(name string) string { return env[name] }
	secret, err := credential.NewStore("", getenv).Resolve(t.Context(), "my-app", "https://git.example.com/a/b")
	if err != nil || secret.BearerToken != "from-env" {
		t.Fatalf("error %v", err)
	}
	dir := folder(t, "my-app", map[string]string{"bearerToken": "from-file"})
	secret, err = credential.NewStore(dir, getenv).Resolve(t.Context(), "my-app", "https://git.example.com/a/b")
	if err != nil || secret.BearerToken != "from-file" {
		t.Fatalf("error %v", err)
	}
}

func TestInvalidNames(t *testing.T) {
	store := credential.NewStore(t.TempDir(), none)
	for _, name := range []string{"../etc", "a/b", ".hidden", "a b", strings.Repeat("x", 101), "unknown"} {
		if _, err := store.Resolve(t.Context(), name, "https://git.example.com/a/b"); events.DispositionOf(err) != events.Permanent {
			t.Errorf("%q: %v, want a permanent error", name, err)
		}
	}
	if secret, err := store.Resolve(t.Context(), "", "https://git.example.com/a/b"); err != nil || secret != (wire.Auth{}) {
		t.Errorf("the empty name: %v, want anonymous", err)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	secret := wire.Auth{Username: "bot", Password: "s3cret", BearerToken: "t0ken", SSHKey: "s3cret", SSHKeyPassphrase: "s3cret"}
	encoded, err := json.Marshal(map[string]any{"secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", secret)
	for _, text := range []string{fmt.Sprint(secret), fmt.Sprintf("%+v %#v %s", secret, secret, secret), log.String(), string(encoded)} {
		if strings.Contains(text, "s3cret") || strings.Contains(text, "t0ken") {
			t.Errorf("printed: %s", text)
		}
	}
}

func TestNamesThatShareVariables(t *testing.T) {
	dir := folder(t, "a-b", map[string]string{"username": "bot"})
	env := map[string]string{"LOCKSTEP_CREDENTIAL_A_B_PASSWORD": "s3cret", "LOCKSTEP_CREDENTIAL_A_B_URLS": "https://git.example.com/"}
	getenv := func(name string) string { return env[name] }
	store := credential.NewStore(dir, getenv)
	const remote = "https://git.example.com/a/b"
	if secret, err := store.Resolve(t.Context(), "a-b", remote); err != nil || secret.Password != "s3cret" {
		t.Fatalf("one credential of files and variables: %v", err)
	}
	if err := credential.Check(dir, getenv, "a-b", "", "other"); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"a.b", "A_B"} { // not in the directory, so its secrets could only be those of a-b
		for what, err := range map[string]error{
			"check":   credential.Check(dir, getenv, other),
			"resolve": errorOf(store.Resolve(t.Context(), other, remote)),
			"sign":    errorOf(store.SigningSecrets(other, remote)),
		} {
			if err == nil || !strings.Contains(err.Error(), `"a-b"`) || !strings.Contains(err.Error(), `"`+other+`"`) {
				t.Errorf("%s of %s: %v, want an error that names both", what, other, err)
			}
		}
	}
	if err := credential.Check("", getenv, "a", "a-previous"); err != nil {
		t.Error(err)
	}
	env["LOCKSTEP_CREDENTIAL_A_PREVIOUS_SIGNING_SECRET"] = "s3cret"
	if err := credential.Check("", getenv, "a", "a-previous"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a variable of two credentials: %v", err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

func TestLongestPrefixThatCovers(t *testing.T) {
	const remote = "https://git.example.com/acme/libs/x.git"
	for name, tc := range map[string]struct {
		remote string
		longer []string // covers with a longer prefix than shorter does
		short  []string
	}{
		"a host, against none":                {remote, []string{"https://git.example.com"}, nil},
		"a folder, against its host":          {remote, []string{"https://git.example.com/acme"}, []string{"https://git.example.com/"}},
		"the repository, against its folder":  {remote, []string{"https://git.example.com/", remote}, []string{"https://git.example.com/acme/libs"}},
		"a long prefix that does not cover":   {remote, []string{"https://git.example.com/acme"}, []string{"https://git.example.com/", "https://git.example.com/acme/libs/y"}},
		"one with a user, against without it": {"ssh://git@git.example.com/acme/x", []string{"ssh://git@git.example.com/acme"}, []string{"ssh://git.example.com/acme"}},
		"the very name, against the other with a user": {
			"ssh://git@git.example.com/acme/x", []string{"ssh://git.example.com/acme/x"}, []string{"ssh://git@git.example.com/acme/x.git"},
		},
		"a longer path, against a user": {"ssh://git@git.example.com/acme/x", []string{"ssh://git.example.com/acme"}, []string{"ssh://git@git.example.com/"}},
	} {
		if a, b := credential.Covers(tc.longer, tc.remote), credential.Covers(tc.short, tc.remote); a <= b {
			t.Errorf("%s: %d, want more than %d", name, a, b)
		}
	}
	if a, b := credential.Covers([]string{"https://git.example.com/acme/"}, remote), credential.Covers([]string{"https://git.example.com/acme"}, remote); a != b {
		t.Errorf("with a slash at the end %d, without %d", a, b)
	}
}

// TestPrefixesOfRepositories: servers and git-lfs know a repository by its name with .git and without.
func TestPrefixesOfRepositories(t *testing.T) {
	const host, lfs = "https://git.example.com", "/info/lfs/objects/batch"
	for prefix, remotes := range map[string]map[string]bool{ // whether it covers them
		"/acme/widgets": {
			"/acme/widgets": true, "/acme/widgets.git": true, "/acme/widgets.git" + lfs: true, "/acme/widgets" + lfs: true, "/acme/widgets.git/info/lfs": true, "/acme/widgets/sub": true,
			"/acme/widgets-other": false, "/acme/widgets-other.git" + lfs: false, "/acme/widgets.github/x": false, "/acme/widgets.git.git": false, "/acme/widgets.wiki.git": false,
			"/acme/widgets.git/evil": false, "/acme/widgets.git/info": false, "/acme/widgets.git/info/lfs-other": false, "/acme/widgets.git/info/lfs/../../../evil": false,
		},
		"/acme/widgets.git": {
			"/acme/widgets": true, "/acme/widgets.git": true, "/acme/widgets.git" + lfs: true, "/acme/widgets" + lfs: true, "/acme/widgets.git/other": true,
			"/acme/widgets-other": false, "/acme/widgets-other.git" + lfs: false, "/acme/widgets.github": false, "/acme/widgets/sub": false, "/acme/widgets.git.git": false,
		},
		"/acme/":     {"/acme/widgets.git" + lfs: true, "/acme": true, "/acme.git": false, "/acme.git" + lfs: false}, // a folder
		"/acme":      {"/acme/widgets.git" + lfs: true, "/acme.git": true, "/acme.git/widgets": false, "/acme-other/widgets": false},
		"/acme/sub":  {"/acme/sub.git": true, "/acme/sub.git/widgets.git" + lfs: false},
		"/acme/.git": {"/acme": false, "/acme/": false, "/acme/x": false},
		"/.git":      {"/": false, "/info/lfs": false, "/x": false},
		"":           {"/acme/widgets.git" + lfs: true},
	} {
		for remote, want := range remotes {
			if got := credential.Covers([]string{host + prefix}, host+remote) > 0; got != want {
				t.Errorf("%s covers %s: %v", prefix, remote, got)
			}
		}
	}
	covers := func(prefix, remote string) int { return credential.Covers([]string{host + prefix}, host+remote) }
	for name, ok := range map[string]bool{
		"the very name, against the other":       covers("/acme/widgets.git", "/acme/widgets.git"+lfs) > covers("/acme/widgets", "/acme/widgets.git"+lfs),
		"the very name without .git":             covers("/acme/widgets", "/acme/widgets") > covers("/acme/widgets.git", "/acme/widgets"),
		"the other name, against the folder":     covers("/acme/widgets", "/acme/widgets.git"+lfs) > covers("/acme", "/acme/widgets.git"+lfs),
		"the LFS server, against the repository": covers("/acme/widgets.git/info/lfs", "/acme/widgets.git"+lfs) > covers("/acme/widgets.git", "/acme/widgets.git"+lfs),
	} {
		if !ok {
			t.Errorf("%s has not the longer prefix", name)
		}
	}
}

func TestURLsOfACredential(t *testing.T) {
	dir := folder(t, "ci", map[string]string{"password": "s3cret\n", "urls": " https://a.example/\n\nhttps://b.example/x\thttps://c.example/ "})
	for name, files := range map[string]map[string]string{"nowhere": {"password": "s3cret", "urls": " \n"}, "keys": {"urls": "https://a.example/", "signingSecret": "s3cret"}} {
		for file, content := range files {
			path := filepath.Join(dir, name, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	store := credential.NewStore(dir, none)
	if urls, err := store.URLs("ci"); err != nil || !slices.Equal(urls, []string{"https://a.example/", "https://b.example/x", "https://c.example/"}) {
		t.Errorf("%q, %v", urls, err)
	}
	for name, says := range map[string]string{"nowhere": filepath.Join(dir, "nowhere", "urls"), "keys": "unknown credential", "nobody": "unknown credential", "../ci": "want at most", "": "want at most"} {
		urls, err := store.URLs(name)
		if err == nil || !strings.Contains(err.Error(), says) || events.ClassOf(err) != events.ClassConfig || events.DispositionOf(err) != events.Permanent {
			t.Errorf("%q: %q, %v", name, urls, err)
		}
	}
}
