// Package credential finds the secret that a change's credential name stands for.
//
// A credential is a folder of files, as Kubernetes and Docker mount secrets, or a set of environment
// variables:
//
//	{dir}/{name}/username               LOCKSTEP_CREDENTIAL_{NAME}_USERNAME
//	{dir}/{name}/password               LOCKSTEP_CREDENTIAL_{NAME}_PASSWORD                 a password or an access token
//	{dir}/{name}/bearerToken            LOCKSTEP_CREDENTIAL_{NAME}_BEARER_TOKEN             instead of the two
//	{dir}/{name}/sshKey                 LOCKSTEP_CREDENTIAL_{NAME}_SSH_KEY                  a private key, PEM or OpenSSH
//	{dir}/{name}/sshKeyPassphrase       LOCKSTEP_CREDENTIAL_{NAME}_SSH_KEY_PASSPHRASE       of a key that is encrypted
//	{dir}/{name}/knownHosts             LOCKSTEP_CREDENTIAL_{NAME}_KNOWN_HOSTS              instead of the setting known-hosts
//	{dir}/{name}/githubAppID            LOCKSTEP_CREDENTIAL_{NAME}_GITHUB_APP_ID            a GitHub App; see below
//	{dir}/{name}/githubInstallationID   LOCKSTEP_CREDENTIAL_{NAME}_GITHUB_INSTALLATION_ID
//	{dir}/{name}/githubPrivateKey       LOCKSTEP_CREDENTIAL_{NAME}_GITHUB_PRIVATE_KEY       RSA, PEM
//	{dir}/{name}/githubURL              LOCKSTEP_CREDENTIAL_{NAME}_GITHUB_URL               https://api.github.com if absent
//	{dir}/{name}/signingSecret          LOCKSTEP_CREDENTIAL_{NAME}_SIGNING_SECRET           of notifications; whsec_ and base64, or as it stands
//	{dir}/{name}/previousSigningSecret  LOCKSTEP_CREDENTIAL_{NAME}_PREVIOUS_SIGNING_SECRET  while it is being replaced: signs too
//	{dir}/{name}/urls                   LOCKSTEP_CREDENTIAL_{NAME}_URLS                     prefixes it may be sent to, by white space
//
// In a variable's name, letters are in upper case and "-" and "." are "_". Files win over variables
// and are read at each use, so that a rotated secret counts from the next operation on. A credential
// without URL prefixes may be sent nowhere: events name credentials, and whoever can write an event
// must not be able to have a token delivered to a server of their own. A prefix has a scheme, https, http
// or ssh, and is for that alone: ssh://git@github.com/acme/.
//
// A GitHub App signs in with its private key and is given a token for one installation. It lasts an
// hour, and is kept in memory until five minutes before that, or until [Store.Refused]; one request for it
// is under way at a time.
package credential

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"lockstep/events"
)

const maxSecret = 64 << 10 // bytes; no credential file is longer

// Secret is what proves an app to a remote. It prints as its shape alone.
type Secret struct {
	Username, Password, BearerToken string // over HTTP

	SSHKey, SSHKeyPassphrase, KnownHosts string // over SSH
}

// String hides the secret.
func (s Secret) String() string {
	if s == (Secret{}) {
		return "anonymous"
	}
	return "redacted"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Store resolves credential names.
type Store struct {
	dir    string
	getenv func(string) string
	github github
}

// Option changes how [NewStore] sets up a [Store].
type Option func(*Store)

// WithTransport has GitHub's API asked by way of transport, instead of [http.DefaultTransport].
func WithTransport(transport http.RoundTripper) Option {
	return func(s *Store) { s.github.client.Transport = transport }
}

// NewStore resolves from the folders below dir and from variables by getenv, as [os.Getenv]. An
// empty dir leaves the variables alone.
func NewStore(dir string, getenv func(string) string, opts ...Option) *Store {
	s := &Store{dir: dir, getenv: getenv, github: newGitHub()}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// files are all that a credential may have, with what ends their variables' names.
var files = map[string]string{
	"username": "USERNAME", "password": "PASSWORD", "bearerToken": "BEARER_TOKEN",
	"sshKey": "SSH_KEY", "sshKeyPassphrase": "SSH_KEY_PASSPHRASE", "knownHosts": "KNOWN_HOSTS",
	"githubAppID": "GITHUB_APP_ID", "githubInstallationID": "GITHUB_INSTALLATION_ID",
	"githubPrivateKey": "GITHUB_PRIVATE_KEY", "githubURL": "GITHUB_URL", "urls": "URLS",
	"signingSecret": "SIGNING_SECRET", "previousSigningSecret": "PREVIOUS_SIGNING_SECRET",
}

// Resolve returns the secret for name if it may be sent to remote; the empty name is anonymous. For a
// GitHub App it may take a request, until ctx is done. Its errors are permanent for the event, but for a
// file that cannot be read and an API that cannot answer.
func (s *Store) Resolve(ctx context.Context, name, remote string) (Secret, error) {
	if name == "" {
		return Secret{}, nil
	}
	if !namePattern.MatchString(name) {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential name %q: want letters, digits and ._-, at most 100", name)
	}
	texts := map[string]string{}
	for file := range files {
		text, err := s.read(name, file)
		if err != nil {
			return Secret{}, events.Errorf(events.Retryable, events.ClassConfig, "credential %s: %w", name, err)
		}
		texts[file] = text
	}
	secret := Secret{
		Username: texts["username"], Password: texts["password"], BearerToken: texts["bearerToken"],
		SSHKey: texts["sshKey"], SSHKeyPassphrase: texts["sshKeyPassphrase"], KnownHosts: texts["knownHosts"],
	}
	app := app{id: texts["githubAppID"], installation: texts["githubInstallationID"], key: texts["githubPrivateKey"], api: texts["githubURL"]}
	if secret == (Secret{}) && app.key == "" {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q is not known here: add %s or %s", name, s.where(name, "password"), variable(name, "password"))
	}
	if !allowed(strings.Fields(texts["urls"]), remote) {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q may not be sent to this remote: list its URL prefix in %s or %s", name, s.where(name, "urls"), variable(name, "urls"))
	}
	if app.key == "" || strings.HasPrefix(remote, "ssh:") {
		return secret, nil
	}
	token, err := s.github.token(ctx, name, app)
	if err != nil {
		return Secret{}, fmt.Errorf("credential %s: %w", name, err)
	}
	secret.Username, secret.Password, secret.BearerToken = "x-access-token", token, ""
	return secret, nil
}

// Refused tells the store that a remote has refused a secret that [Store.Resolve] returned for name. It
// reports whether another may do better: the token of a GitHub App, which may have been revoked before its
// time, is forgotten, and the next Resolve asks for a new one.
func (s *Store) Refused(name string, secret Secret) bool {
	return secret.Password != "" && s.github.forget(name, secret.Password)
}

func (s *Store) where(name, file string) string {
	if s.dir == "" {
		return "a --credentials folder"
	}
	return filepath.Join(s.dir, name, file)
}

func (s *Store) read(name, file string) (string, error) {
	if s.dir != "" {
		from := filepath.Join(s.dir, name, file)
		if info, err := os.Stat(from); err == nil && info.Size() > maxSecret {
			return "", fmt.Errorf("%s is longer than %d bytes", from, maxSecret)
		}
		text, err := os.ReadFile(from)
		if err == nil {
			return strings.TrimRight(string(text), "\r\n"), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return s.getenv(variable(name, file)), nil
}

func variable(name, file string) string {
	name = strings.NewReplacer("-", "_", ".", "_").Replace(name)
	return "LOCKSTEP_CREDENTIAL_" + strings.ToUpper(name) + "_" + files[file]
}

// allowed reports whether one of the prefixes covers remote: same scheme and host, same user if it names
// one, and a path that is equal or ends at a slash.
func allowed(prefixes []string, remote string) bool {
	to, err := url.Parse(remote)
	if err != nil {
		return false
	}
	target := path.Clean("/" + to.Path) // where a server that resolves ".." would go
	for _, prefix := range prefixes {
		p, err := url.Parse(prefix)
		if err != nil || p.Host == "" || p.Scheme != to.Scheme || events.HostPort(p) != events.HostPort(to) {
			continue
		}
		if p.User != nil && p.User.String() != to.User.String() {
			continue
		}
		below := strings.TrimSuffix(p.Path, "/")
		if target == below || strings.HasPrefix(target, below+"/") {
			return true
		}
	}
	return false
}
