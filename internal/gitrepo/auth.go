package gitrepo

import (
	"log/slog"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
)

// Auth is the credential for one operation: a user name and password, or a bearer token. The zero
// value is anonymous. It prints as a placeholder, whichever way it is printed.
type Auth struct {
	Username    string
	Password    string
	BearerToken string
}

const redacted = "[credential]"

// IsZero reports whether a holds no credential.
func (a Auth) IsZero() bool { return a == Auth{} }

// String returns a placeholder, or "anonymous".
func (a Auth) String() string {
	if a.IsZero() {
		return "anonymous"
	}
	return redacted
}

// GoString is String: %#v shows no secret either.
func (a Auth) GoString() string { return a.String() }

// LogValue is String, for slog.
func (a Auth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// MarshalText is String: encoders show no secret either.
func (a Auth) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// method returns what go-git's HTTP transport sends along, and withholds when a redirect leaves the
// remote's origin.
func (a Auth) method() transport.AuthMethod {
	switch {
	case a.IsZero():
		return nil
	case a.BearerToken != "":
		return &githttp.TokenAuth{Token: a.BearerToken}
	}
	return &githttp.BasicAuth{Username: a.Username, Password: a.Password}
}
