package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"lockstep/internal/egress"
	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// Session performs one operation on a remote.
type Session struct {
	net     *Network
	url     string
	host    string
	auth    Auth
	wire    *monitor
	carrier carrier
	refs    *advertisement // nil before List

	offered      *protocol2   // nil under protocol 0
	capabilities capabilities // under protocol 0

	limits      Limits
	limiterHost string // see [Limiter]
}

// carrier sends requests to git-upload-pack, one at a time: httpCarrier or sshCarrier. The caller closes each
// response before the next request.
type carrier interface {
	// advertise sends the first request, whose response is as for readAdvertisement.
	advertise(context.Context) (io.ReadCloser, error)
	// post sends another request, of protocol 2 or 0. It needs an earlier advertise if isReady is false.
	post(ctx context.Context, request []byte, listing, v2 bool) (io.ReadCloser, error)
	isReady() bool
	canPost() bool // with the same URL, post needs no advertise in any session
	moved() string // URL that the server permanently redirected advertise to; "" for none

	abort(err error, listing bool) // a response was not valid
	close()
}

// Dial creates a session without sending anything. The URL must not contain credentials. It is foreign if it comes
// from a webhook's payload, not from the operator. auth is for the URL that is [Network.Asked].
func (n *Network) Dial(rawURL string, auth Auth, foreign bool, limits Limits) (*Session, error) {
	if asked := n.Asked(rawURL); asked != rawURL {
		rawURL, foreign = asked, false
	}
	if err := n.checkURL(rawURL); err != nil {
		return nil, git.Errorf(git.Permanent, git.ClassConfig, "remote: %w", err)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, git.Errorf(git.Permanent, git.ClassConfig, "remote: the URL does not parse")
	}
	if err := auth.checkScheme(u.Scheme); err != nil {
		return nil, err
	}
	r := &Session{
		net: n, url: rawURL, host: strings.TrimSuffix(u.Host, ":"), auth: auth, limits: limits, limiterHost: hostPort(u),
		wire: &monitor{maxPack: limits.MaxPackBytes, timeouts: n.timeouts(hostPort(u))},
	}
	if u.Scheme == "ssh" {
		r.carrier = &sshCarrier{net: n, foreign: foreign, url: u, auth: auth, wire: r.wire}
		return r, nil
	}
	r.wire.next = &route{net: n, origin: u, foreign: foreign}
	r.carrier = &httpCarrier{wire: r.wire, base: u, auth: auth}
	return r, nil
}

// fault classifies an error. ctx is the caller's context, reqCtx the request's.
func (r *Session) fault(ctx, reqCtx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && reqCtx.Err() != nil:
		return git.Errorf(git.Retryable, git.ClassNetwork,
			"%s took longer than %v; raise fetch-timeout in the setting limits if the repository is meant to "+
				"be that large", r.host, r.limits.Timeout)
	}
	fault := r.wire.firstError()
	line, isLine := errors.AsType[errorLine](err)
	switch {
	case fault != nil:
	case isLine:
		fault = refusalOf(string(line), r.refs == nil)
	default:
		fault = faultOf(err, r.wire.start(), r.refs == nil)
	}
	return remoteError(ctx, r.host, r.auth, fault, err)
}

// ForgetRefs frees the listed refs, which may number a million. A fetch does not need them.
func (r *Session) ForgetRefs() { r.refs.refs, r.refs.peeled = nil, nil }

// do sends a request through the limiter and within the timeout, and classifies its error.
func (r *Session) do(ctx context.Context, send func(context.Context) error) error {
	return r.limits.limited(ctx, r.limiterHost, r.wire, func() error { return r.send(ctx, send) })
}

func (r *Session) send(ctx context.Context, send func(context.Context) error) (err error) {
	reqCtx, cancel := context.WithTimeout(ctx, r.limits.Timeout)
	defer cancel()
	defer func() { err = r.fault(ctx, reqCtx, err) }()
	defer recoverTo(&err)
	r.wire.begin()
	if err := send(reqCtx); err != nil {
		return err
	}
	return reqCtx.Err()
}

// Close closes the connection.
func (r *Session) Close() { r.carrier.close() }

// recoverTo turns a panic on an invalid response into an error. Defer it.
func recoverTo(err *error) {
	if cause := recover(); cause != nil {
		*err = errors.Join(errGarbage, fmt.Errorf("panic: %v", cause))
	}
}

// Limits bounds one session.
type Limits struct {
	MaxPackBytes int64         // bytes per fetch
	Timeout      time.Duration // for the list of refs, and for each fetch
	Limiter      Limiter       // optional
}

// Tip is the remote's position of a ref.
type Tip struct {
	Ref       string    // full name, or the commit if one was asked for by its hash
	IsDefault bool      // Ref is the remote's default branch
	Want      object.ID // the object to fetch, which may be a tag
	Commit    object.ID // the commit; zero for a tag that the server does not peel
	ByHash    bool      // no listed ref points to Want, so the server may refuse it
}

// Resolve returns the position of the ref with a full name, or of the default branch if that is "".
func (r *Session) Resolve(name string) (Tip, error) {
	defaultName := r.defaultBranch()
	if name == "" {
		name = defaultName
	}
	if name == "" {
		return Tip{}, git.Errorf(git.Permanent, git.ClassNoRef,
			"the repository at %s does not advertise its default branch; name a ref in the change", r.host)
	}
	if err := r.net.checkRef(name); err != nil { // such as a short name, or HEAD
		return Tip{}, git.Errorf(git.Permanent, git.ClassNoRef,
			"the default branch at %s: %w; correct its HEAD, or name a ref in the change", r.host, err)
	}
	want, ok := r.refs.refs[name]
	if name == DetachedHead && name == defaultName {
		want, ok = r.refs.head, true
	}
	if !ok {
		return Tip{}, git.Errorf(git.Permanent, git.ClassNoRef, "the repository at %s has no ref %s", r.host, name)
	}
	t := Tip{Ref: name, IsDefault: name == defaultName, Want: want, Commit: want}
	if peeled, ok := r.refs.peeled[name]; ok {
		t.Commit = peeled
	} else if strings.HasPrefix(name, "refs/tags/") {
		t.Commit = object.ZeroID // may be an annotated tag on a server that does not peel
	}
	return t, nil
}

// symrefAgents are servers that say under protocol 0 which branch HEAD is, so that HEAD is detached if they
// do not. Under protocol 2 all do.
var symrefAgents = regexp.MustCompile(`^git/[2-9]`)

// DetachedHead is the name of the default branch of a remote whose HEAD is not a branch. No remote has a ref
// of this name.
const DetachedHead = "refs/lockstep/HEAD"

// defaultBranch returns the full name of the remote's default branch, [DetachedHead] if its HEAD is not a
// branch, or "". If the server cannot advertise it, it picks a branch that points to the commit of HEAD,
// preferably main or master.
func (r *Session) defaultBranch() string {
	for _, symref := range r.refs.capabilities["symref"] {
		if target, ok := strings.CutPrefix(symref, "HEAD:"); ok {
			return target
		}
	}
	agent := strings.Join(r.refs.capabilities["agent"], " ")
	if !r.refs.head.IsZero() && (r.offered != nil || symrefAgents.MatchString(agent)) {
		return DetachedHead
	}
	atHead := func(name string) bool {
		hash, ok := r.refs.refs[name]
		return ok && (r.refs.head.IsZero() || hash == r.refs.head)
	}
	for _, name := range []string{"refs/heads/main", "refs/heads/master"} {
		if atHead(name) {
			return name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.refs.refs)) {
		if !r.refs.head.IsZero() && strings.HasPrefix(name, "refs/heads/") && atHead(name) {
			return name
		}
	}
	if !r.refs.head.IsZero() {
		return DetachedHead
	}
	return ""
}

// hostPort returns the canonical host of u, with the port unless it is the default of the scheme.
func hostPort(u *url.URL) string {
	port, name := u.Port(), egress.CanonicalHost(u.Hostname())
	if port == "" || port == map[string]string{"https": "443", "http": "80", "ssh": "22"}[u.Scheme] {
		return name
	}
	return net.JoinHostPort(name, port)
}
