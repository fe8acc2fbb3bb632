package wire

import (
	"log/slog"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"lockstep/events"
)

// Auth is the credential for one operation: a user name and password or a bearer token for HTTP, a
// private key for SSH. The zero value is anonymous. It prints as a placeholder, whichever way it is
// printed.
type Auth struct {
	Username    string
	Password    string
	BearerToken string

	SSHKey           string // PEM or OpenSSH
	SSHKeyPassphrase string // empty for a key that is not encrypted
	KnownHosts       string // lines of a known_hosts file, instead of the network's; empty for those
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
	case a.BearerToken != "":
		return &githttp.TokenAuth{Token: a.BearerToken}
	case a.Username != "" || a.Password != "":
		return &githttp.BasicAuth{Username: a.Username, Password: a.Password}
	}
	return nil
}

// serves refuses a credential that has nothing for a URL's scheme.
func (a Auth) serves(scheme string) error {
	switch {
	case scheme == "ssh" && a.SSHKey == "" && a.IsZero():
		return events.Errorf(events.Permanent, events.ClassAuth, "a remote over SSH wants a key: name a credential with an sshKey in the change")
	case scheme == "ssh" && a.SSHKey == "":
		return events.Errorf(events.Permanent, events.ClassConfig, "the credential has no sshKey, and the remote is reached over SSH; add one")
	case scheme != "ssh" && !a.IsZero() && a.method() == nil:
		return events.Errorf(events.Permanent, events.ClassConfig,
			"the credential has neither password nor token, and the remote is reached over HTTP; add one")
	}
	return nil
}
