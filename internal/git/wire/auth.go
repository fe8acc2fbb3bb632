package wire

import (
	"log/slog"
	"net/http"
	"strings"

	"lockstep/internal/git"
)

// Auth is the credential for one operation: a user name and password or a bearer token for HTTP, a private key for
// SSH. The zero value is anonymous. All ways to print or encode it yield a placeholder.
type Auth struct {
	Username    string
	Password    string
	BearerToken string

	SSHKey           string // PEM or OpenSSH
	SSHKeyPassphrase string // empty for a key that is not encrypted
	KnownHosts       string // lines of a known_hosts file; defaults to the network's files

	Name string // of the credential, for errors; optional
}

const redacted = "[credential]"

// IsZero reports whether a holds no credential.
func (a Auth) IsZero() bool { return a == Auth{Name: a.Name} }

// named returns the credential's name for errors, which are about the credential.
func (a Auth) named() string { return strings.TrimSpace("the credential " + a.Name) }

// String returns a placeholder, or "anonymous".
func (a Auth) String() string {
	if a.IsZero() {
		return "anonymous"
	}
	return redacted
}

// GoString implements [fmt.GoStringer] with String.
func (a Auth) GoString() string { return a.String() }

// LogValue implements [slog.LogValuer] with String.
func (a Auth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// MarshalText implements [encoding.TextMarshaler] with String.
func (a Auth) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// setHeader adds the credential to an HTTP request.
func (a Auth) setHeader(req *http.Request) {
	switch {
	case a.BearerToken != "":
		req.Header.Set("Authorization", "Bearer "+a.BearerToken)
	case a.hasPassword():
		req.SetBasicAuth(a.Username, a.Password)
	}
}

func (a Auth) hasPassword() bool { return a.Username != "" || a.Password != "" }

// checkScheme returns an error if the credential cannot be used with a URL's scheme.
func (a Auth) checkScheme(scheme string) error {
	switch {
	case scheme == "ssh" && a.SSHKey == "" && a.IsZero():
		return git.Errorf(git.Permanent, git.ClassAuth, "a remote over SSH requires a key; "+
			"name a credential that has an sshKey in the watch or change (--credential)")
	case scheme == "ssh" && a.SSHKey == "":
		return git.Errorf(git.Permanent, git.ClassConfig,
			"the credential has no sshKey, which a remote over SSH requires; add one")
	case scheme != "ssh" && !a.IsZero() && a.BearerToken == "" && !a.hasPassword():
		return git.Errorf(git.Permanent, git.ClassConfig,
			"the credential has neither password nor token, which a remote over HTTP requires; add one")
	}
	return nil
}
