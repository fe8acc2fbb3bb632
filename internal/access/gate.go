package access

import (
	"errors"
	"net/http"
	"strings"
)

// Identity is the authenticated sender of a request. The zero Identity reads nothing.
type Identity struct {
	App      string // whose token was sent; "" for the operator
	Operator bool   // reads all
}

// Errors of [Gate.Identify].
var (
	ErrNoToken      = errors.New("send a token of an app as a bearer token, or as the password of HTTP Basic; create one with lockstep tokens create --app NAME")
	ErrUnknownToken = errors.New("the token is unknown or was removed; create one with lockstep tokens create --app NAME")
	ErrClearText    = errors.New("tokens of apps are accepted over TLS or from the same machine only: use https, and list the addresses of the TLS proxy in trusted-proxies; consider this token read by others and replace it")
)

// Gate authenticates requests.
type Gate struct {
	Tokens *Tokens

	// Operator reports whether a request is the operator's. token is that of the request, "" if it has none.
	Operator func(r *http.Request, token string) bool

	// Private reports whether nobody else can read the request's token on its way: the connection is encrypted, or does not leave this
	// machine.
	Private func(r *http.Request) bool
}

// Identify returns the sender of a request, or one of the errors above, or that of Redis. It does not look up a token that was sent over
// an unencrypted connection.
func (g Gate) Identify(r *http.Request) (Identity, error) {
	token := TokenOf(r)
	switch {
	case g.Operator(r, token):
		return Identity{Operator: true}, nil
	case token == "":
		return Identity{}, ErrNoToken
	case !g.Private(r):
		return Identity{}, ErrClearText
	}
	app, ok, err := g.Tokens.App(r.Context(), token)
	switch {
	case err != nil:
		return Identity{}, err
	case !ok:
		return Identity{}, ErrUnknownToken
	}
	return Identity{App: app}, nil
}

// TokenOf returns the bearer token of a request, or its HTTP Basic password, or "".
func TokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}
