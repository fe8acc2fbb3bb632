package access

import (
	"context"
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
	ErrNoToken = errors.New("send a token of an app as a bearer token, or as the password of HTTP Basic; " +
		"create one with lockstep tokens create --app NAME")
	ErrUnknownToken = errors.New("the token is unknown or was removed; create one with lockstep tokens create --app NAME")
	ErrClearText    = errors.New("tokens of apps are accepted over TLS or from the same machine only: use https, " +
		"and list the addresses of the TLS proxy in trusted-proxies; consider this token read by others and replace it")
)

// Gate authenticates requests.
type Gate struct {
	Tokens *Tokens

	// Operator reports whether a token is the operator's.
	Operator func(token string) bool

	// Open reports whether a request without a token is the operator's until the first token of an app is
	// created. From then on requests must send one, also after the last one was removed: clients such as Git
	// send it only when they are asked for it, and would read everything otherwise.
	Open func(r *http.Request) bool

	// Private reports whether nobody else can read the request's token on its way: the connection is
	// encrypted, or does not leave this machine.
	Private func(r *http.Request) bool
}

// Identify returns the sender of a request, or one of the errors above, or that of Redis. It does not look up
// a token that was sent over an unencrypted connection.
func (g Gate) Identify(r *http.Request) (Identity, error) {
	token := TokenOf(r)
	switch {
	case g.Operator(token):
		return Identity{Operator: true}, nil
	case token == "" && g.Open(r):
		return g.operatorUnlessRequired(r.Context())
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

// operatorUnlessRequired returns the operator if no app ever had a token.
func (g Gate) operatorUnlessRequired(ctx context.Context) (Identity, error) {
	required, err := g.Tokens.Required(ctx)
	switch {
	case err != nil:
		return Identity{}, err
	case required:
		return Identity{}, ErrNoToken
	}
	return Identity{Operator: true}, nil
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
