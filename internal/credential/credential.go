// Package credential finds the secret that a change's credential name stands for.
//
// A credential is a folder of files, as Kubernetes and Docker mount secrets, or a set of environment
// variables:
//
//	{dir}/{name}/username       LOCKSTEP_CREDENTIAL_{NAME}_USERNAME       for basic authentication
//	{dir}/{name}/password       LOCKSTEP_CREDENTIAL_{NAME}_PASSWORD       a password or an access token
//	{dir}/{name}/bearerToken    LOCKSTEP_CREDENTIAL_{NAME}_BEARER_TOKEN   instead of the two
//	{dir}/{name}/urls           LOCKSTEP_CREDENTIAL_{NAME}_URLS           prefixes it may be sent to, by white space
//
// In a variable's name, letters are in upper case and "-" and "." are "_". Files win over variables
// and are read at each use, so that a rotated secret counts from the next operation on. A credential
// without URL prefixes may be sent nowhere: events name credentials, and whoever can write an event
// must not be able to have a token delivered to a server of their own.
package credential

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
type Secret struct{ Username, Password, BearerToken string }

// String hides the secret.
func (s Secret) String() string {
	if s == (Secret{}) {
		return "anonymous"
	}
	return "redacted"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Store resolves credential names.
type Store struct {
	dir    string
	getenv func(string) string
}

// NewStore resolves from the folders below dir and from variables by getenv, as [os.Getenv]. An
// empty dir leaves the variables alone.
func NewStore(dir string, getenv func(string) string) *Store {
	return &Store{dir: dir, getenv: getenv}
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// Resolve returns the secret for name if it may be sent to remote; the empty name is anonymous.
// Every error is permanent for the event, but for a file that cannot be read.
func (s *Store) Resolve(name, remote string) (Secret, error) {
	if name == "" {
		return Secret{}, nil
	}
	if !namePattern.MatchString(name) {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential name %q: want letters, digits and ._-, at most 100", name)
	}
	var secret Secret
	var prefixes string
	for file, into := range map[string]*string{
		"username": &secret.Username, "password": &secret.Password,
		"bearerToken": &secret.BearerToken, "urls": &prefixes,
	} {
		var err error
		if *into, err = s.read(name, file); err != nil {
			return Secret{}, events.Errorf(events.Retryable, events.ClassConfig, "credential %s: %w", name, err)
		}
	}
	if secret == (Secret{}) {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q is not known here: add %s or %s", name, s.where(name, "password"), variable(name, "password"))
	}
	if !allowed(strings.Fields(prefixes), remote) {
		return Secret{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q may not be sent to this remote: list its URL prefix in %s or %s", name, s.where(name, "urls"), variable(name, "urls"))
	}
	return secret, nil
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
	if file == "bearerToken" {
		file = "bearer_token"
	}
	name = strings.NewReplacer("-", "_", ".", "_").Replace(name)
	return strings.ToUpper("LOCKSTEP_CREDENTIAL_" + name + "_" + file)
}

// allowed reports whether one of the prefixes covers remote: same scheme and host, and a path that
// is equal or ends at a slash.
func allowed(prefixes []string, remote string) bool {
	to, err := url.Parse(remote)
	if err != nil {
		return false
	}
	target := path.Clean(to.Path) // where a server that resolves ".." would go
	for _, prefix := range prefixes {
		p, err := url.Parse(prefix)
		if err != nil || p.Host == "" || p.Scheme != to.Scheme || !strings.EqualFold(p.Host, to.Host) {
			continue
		}
		below := strings.TrimSuffix(p.Path, "/")
		if target == below || strings.HasPrefix(target, below+"/") {
			return true
		}
	}
	return false
}
