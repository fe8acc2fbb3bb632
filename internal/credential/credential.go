// Package credential resolves the credential names in changes to secrets.
//
// A credential is a directory of files, in the form in which Kubernetes and Docker mount secrets, or a set of
// environment variables that begin with LOCKSTEP_CREDENTIAL_{NAME}:
//
//	{dir}/{name}/username               _USERNAME
//	{dir}/{name}/password               _PASSWORD                 a password or an access token
//	{dir}/{name}/bearerToken            _BEARER_TOKEN             instead of username and password
//	{dir}/{name}/sshKey                 _SSH_KEY                  a private key, PEM or OpenSSH
//	{dir}/{name}/sshKeyPassphrase       _SSH_KEY_PASSPHRASE       if the key is encrypted
//	{dir}/{name}/knownHosts             _KNOWN_HOSTS              overrides the setting known-hosts
//	{dir}/{name}/githubAppID            _GITHUB_APP_ID            a GitHub App; see below
//	{dir}/{name}/githubInstallationID   _GITHUB_INSTALLATION_ID
//	{dir}/{name}/githubPrivateKey       _GITHUB_PRIVATE_KEY       RSA, PEM
//	{dir}/{name}/githubURL              _GITHUB_URL               default https://api.github.com
//	{dir}/{name}/signingSecret          _SIGNING_SECRET           for notifications; whsec_ and base64, or any text
//	{dir}/{name}/previousSigningSecret  _PREVIOUS_SIGNING_SECRET  also signs, during rotation
//	{dir}/{name}/openpgpKeys            _OPENPGP_KEYS             public keys, as gpg --export writes them
//	{dir}/{name}/allowedSigners         _ALLOWED_SIGNERS          the same for SSH, as in ssh-keygen(1), ALLOWED SIGNERS
//	{dir}/{name}/revokedKeys            _REVOKED_KEYS             SSH public keys that are revoked, one per line
//	{dir}/{name}/urls                   _URLS                     URL prefixes to which it may be sent
//
// Variable names use upper case, and "_" for "-" and ".", so [Check] refuses names that differ only in these.
// Files take precedence over variables. They are read at each use, all of the same version of a mounted
// secret, so a rotated secret takes effect immediately. A credential without URL prefixes is never sent:
// events name credentials, and anybody who can write an event could otherwise have a token sent to another
// server. A prefix has the scheme https, http or ssh, and only matches that scheme:
// ssh://git@github.com/acme/. One of a repository covers it and its LFS server with and without .git.
//
// A GitHub App authenticates with its private key and receives a token for one installation. The token is
// valid for one hour and cached in memory until five minutes before it expires, or until [Store.Refused]. At
// most one request for it is in flight.
package credential

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/egress"
	"lockstep/internal/git/wire"
)

const maxSecret = 64 << 10 // bytes

// Store resolves credential names.
type Store struct {
	dir    string
	getenv func(string) string
	github github
}

// NewStore returns a Store that reads the directories in dir and variables with getenv, such as [os.Getenv]. If dir is
// empty, it only reads variables.
func NewStore(dir string, getenv func(string) string) *Store {
	return &Store{dir: dir, getenv: getenv, github: newGitHub()}
}

// WithTransport sets the transport for GitHub's API, by default [http.DefaultTransport], and returns s. It must not be
// called once s is in use.
func (s *Store) WithTransport(transport http.RoundTripper) *Store {
	s.github.client.Transport = transport
	return s
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// files are the files of a credential, with the suffixes of the corresponding environment variables.
var files = map[string]string{
	"username": "USERNAME", "password": "PASSWORD", "bearerToken": "BEARER_TOKEN",
	"sshKey": "SSH_KEY", "sshKeyPassphrase": "SSH_KEY_PASSPHRASE", "knownHosts": "KNOWN_HOSTS",
	"githubAppID": "GITHUB_APP_ID", "githubInstallationID": "GITHUB_INSTALLATION_ID",
	"githubPrivateKey": "GITHUB_PRIVATE_KEY", "githubURL": "GITHUB_URL", "urls": "URLS",
	"signingSecret": "SIGNING_SECRET", "previousSigningSecret": "PREVIOUS_SIGNING_SECRET",
	"openpgpKeys": "OPENPGP_KEYS", "allowedSigners": "ALLOWED_SIGNERS", "revokedKeys": "REVOKED_KEYS",
}

// publicKeys are the files with public keys, which may be longer, and are read only by [Store.PublicKeys].
var publicKeys = map[string]bool{"openpgpKeys": true, "allowedSigners": true, "revokedKeys": true}

// Resolve returns the secret for name if it may be sent to remote. The empty name is anonymous. For a GitHub App it may
// send a request, which ctx cancels. Its errors are permanent for the event, except if a file cannot be read or the API
// cannot answer.
func (s *Store) Resolve(ctx context.Context, name, remote string) (wire.Auth, error) {
	if name == "" {
		return wire.Auth{}, nil
	}
	texts, err := s.known(name)
	if err != nil {
		return wire.Auth{}, err
	}
	auth := authOf(texts)
	auth.Name = name
	app := app{
		id: texts["githubAppID"], installation: texts["githubInstallationID"], key: texts["githubPrivateKey"],
		api: texts["githubURL"],
	}
	if Covers(strings.Fields(texts["urls"]), remote) == 0 {
		return wire.Auth{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q may not be sent to this remote; add its URL prefix to %s or %s", name, s.Where(name, "urls"),
			variable(name, "urls"))
	}
	if app.key == "" || strings.HasPrefix(remote, "ssh:") {
		return auth, nil
	}
	token, err := s.github.token(ctx, name, app)
	if err != nil {
		return wire.Auth{}, fmt.Errorf("credential %s: %w", name, err)
	}
	auth.Username, auth.Password, auth.BearerToken = "x-access-token", token, ""
	return auth, nil
}

// ResolveOther is like Resolve for a URL that the content of a repository names. It returns the zero Auth if the
// credential may not be sent there.
func (s *Store) ResolveOther(ctx context.Context, name, url string) (wire.Auth, error) {
	if !MayBeSent(url) {
		return wire.Auth{}, nil
	}
	auth, err := s.Resolve(ctx, name, url)
	if events.ClassOf(err) == events.ClassConfig && events.DispositionOf(err) == events.Permanent {
		return wire.Auth{}, nil // not among its URL prefixes
	}
	return auth, err
}

// MayBeSent returns false for URLs that no credential is sent to, such as one with "..;", which could escape a prefix.
func MayBeSent(url string) bool {
	place, _, _ := strings.Cut(url, "?")
	return events.CheckRemote(place) == nil
}

// known returns the texts of a credential's files. It fails if there is no secret for a remote among them.
func (s *Store) known(name string) (map[string]string, error) {
	texts, err := s.read(name, false)
	if err != nil {
		return nil, err
	}
	if err := s.checkURLs(name, texts["urls"]); err != nil {
		return nil, err
	}
	if authOf(texts).IsZero() && texts["githubPrivateKey"] == "" {
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"unknown credential %q; add %s or %s", name, s.Where(name, "password"), variable(name, "password"))
	}
	return texts, nil
}

func authOf(texts map[string]string) wire.Auth {
	return wire.Auth{
		Username: texts["username"], Password: texts["password"], BearerToken: texts["bearerToken"],
		SSHKey: texts["sshKey"], SSHKeyPassphrase: texts["sshKeyPassphrase"], KnownHosts: texts["knownHosts"],
	}
}

// Refused reports that a remote has refused a credential returned by [Store.Resolve]. It returns true if a
// retry with a new one may succeed: a GitHub App's token, which may have been revoked early, is dropped, and
// the next Resolve requests a new one.
func (s *Store) Refused(name string, auth wire.Auth) bool {
	return auth.Password != "" && s.github.forget(name, auth.Password)
}

// Where returns the path of a credential's file, for errors that ask for one.
func (s *Store) Where(name, file string) string {
	if s.dir == "" {
		return "a --credentials directory"
	}
	return filepath.Join(s.dir, name, file)
}

// read returns the texts of a credential's files, either its public keys or all others. They are of the same
// version if they are replaced meanwhile.
func (s *Store) read(name string, public bool) (texts map[string]string, err error) {
	if !namePattern.MatchString(name) {
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential name %.110q: want at most 100 letters, digits, dots, underscores or hyphens", name)
	}
	ofVariables := false
	read := func() error {
		texts, ofVariables = map[string]string{}, false
		for file := range files {
			if publicKeys[file] != public {
				continue
			}
			text, ok, err := s.readFile(name, file)
			if err != nil {
				return err
			}
			if !ok {
				text = s.getenv(variable(name, file))
				ofVariables = ofVariables || text != ""
			}
			texts[file] = text
		}
		return nil
	}
	if s.dir == "" {
		err = read()
	} else {
		err = disk.ReadStable(filepath.Join(s.dir, name), read)
	}
	if err != nil {
		return nil, events.Errorf(events.Retryable, events.ClassConfig, "credential %s: %w", name, err)
	}
	if ofVariables {
		return texts, s.checkVariables(name)
	}
	return texts, nil
}

// readFile returns the text of a file of a credential, and whether it exists.
func (s *Store) readFile(name, file string) (text string, ok bool, err error) {
	if s.dir == "" {
		return "", false, nil
	}
	from, limit := filepath.Join(s.dir, name, file), int64(maxSecret)
	if publicKeys[file] {
		limit = maxKeys
	}
	if info, err := os.Stat(from); err == nil && info.Size() > limit {
		return "", false, fmt.Errorf("%s is longer than %d bytes", from, limit)
	}
	bytes, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if publicKeys[file] { // may be binary
		return string(bytes), true, nil
	}
	return strings.TrimRight(string(bytes), "\r\n"), true, nil
}

func (s *Store) checkURLs(name, urls string) error {
	for prefix := range strings.FieldsSeq(urls) {
		if err := egress.CheckPrefix(prefix); err != nil {
			return events.Errorf(events.Permanent, events.ClassConfig, "credential %q: %w; correct %s or %s", name, err,
				s.Where(name, "urls"), variable(name, "urls"))
		}
	}
	return nil
}

// URLs returns the URL prefixes that a credential may be sent to, at least one. Its errors are as those of
// [Store.Resolve].
func (s *Store) URLs(name string) ([]string, error) {
	texts, err := s.known(name)
	if err != nil {
		return nil, err
	}
	prefixes := strings.Fields(texts["urls"])
	if len(prefixes) == 0 {
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q has no URL prefixes, so it is never sent; add them to %s or %s", name, s.Where(name, "urls"),
			variable(name, "urls"))
	}
	return prefixes, nil
}

// Covers returns the length of the longest of the URL prefixes that covers remote, at least 1, or 0 if none
// does. A prefix covers it that has the same scheme and host, the same user if the prefix names one, and a
// path that covers that of the remote, ignoring case, as remotes are told apart. Of two prefixes with the same path,
// one with a user is longer.
func Covers(prefixes []string, remote string) (length int) {
	to, err := url.Parse(remote)
	if err != nil {
		return 0
	}
	target := strings.ToLower(path.Clean("/" + to.Path)) // servers may resolve ".."
	for _, prefix := range prefixes {
		p, err := url.Parse(prefix)
		if err != nil || p.Host == "" || p.Scheme != to.Scheme || events.HostPort(p) != events.HostPort(to) {
			continue
		}
		if p.User != nil && p.User.String() != to.User.String() {
			continue
		}
		own := coversPath(strings.ToLower(p.Path), target)
		if own > 0 && p.User != nil {
			own++
		}
		length = max(length, own)
	}
	return length
}

// coversPath returns the length of a prefix that covers a path: the path is equal, or continues with a slash. A prefix
// that does not end in a slash may be a repository, with or without .git: it also covers the repository and its LFS
// server by the other name, but is shorter than a prefix with that name.
func coversPath(prefix, target string) (length int) {
	name := strings.TrimSuffix(prefix, "/")
	if target == name || strings.HasPrefix(target, name+"/") {
		return 2 + 4*len(name)
	}
	name = strings.TrimSuffix(prefix, ".git")
	rest, ok := strings.CutPrefix(target, name)
	rest = strings.TrimPrefix(rest, ".git")
	if ok && !strings.HasSuffix(name, "/") && (rest == "" || strings.HasPrefix(rest+"/", "/info/lfs/")) {
		return 4 * len(name)
	}
	return 0
}
