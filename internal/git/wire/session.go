package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"lockstep/internal/git/object"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"lockstep/events"
)

// Session is one operation's conversation with a repository's server.
type Session struct {
	host    string
	auth    Auth
	wire    *monitor
	timeout time.Duration // for the list of refs, and for each fetch
	session uploadPackSession
	refs    *packp.AdvRefs
}

// uploadPackSession is Git's upload-pack on the other side; go-git's for HTTP is one, and ours for SSH.
type uploadPackSession interface {
	AdvertisedReferencesContext(context.Context) (*packp.AdvRefs, error)
	UploadPack(context.Context, *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

func init() {
	// go-git hides from itself what its own fetch does not do. Ours sends all in one request, so that every
	// kind of acknowledgement comes to the same; it completes thin packs; and there are servers, such as
	// Azure DevOps, that refuse clients without multi_ack.
	transport.UnsupportedCapabilities = nil
}

// Dial prepares a conversation and sends nothing yet. The URL has no credentials in it. It is foreign if it does
// not come from the operator, but from a webhook's payload.
func (n *Network) Dial(rawURL string, auth Auth, foreign bool, limits Limits) (*Session, error) {
	if err := CheckURL(rawURL); err != nil {
		return nil, err
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: the URL does not parse")
	}
	if err := auth.serves(u.Scheme); err != nil {
		return nil, err
	}
	r := &Session{host: u.Host, auth: auth, wire: &monitor{maxPack: limits.MaxPackBytes}, timeout: limits.Timeout}
	if u.Scheme == "ssh" {
		r.session = &sshSession{net: n, foreign: foreign, url: u, auth: auth, wire: r.wire}
		return r, nil
	}
	r.wire.next = &route{net: n, origin: u, foreign: foreign}
	endpoint, err := transport.NewEndpoint(rawURL)
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: the URL does not parse")
	}
	// go-git's client follows redirects of the first request only, never from https to http, and
	// withholds credentials once a redirect has left the remote's origin.
	r.session, err = githttp.NewClient(&http.Client{Transport: r.wire}).NewUploadPackSession(endpoint, auth.method())
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: prepare to ask %s", u.Host)
	}
	return r, nil
}

// List asks for the remote's refs. Success proves the credential.
func (r *Session) List(ctx context.Context) (err error) {
	within, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	defer func() { err = r.fault(ctx, within, err) }()
	defer recoverTo(&err)
	r.refs, err = r.session.AdvertisedReferencesContext(within)
	return err
}

// fault classifies an error of the conversation; ctx is the caller's, within the request's own.
func (r *Session) fault(ctx, within context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && within.Err() != nil:
		return events.Errorf(events.Retryable, events.ClassNetwork,
			"%s took longer than %v; raise the setting fetch-timeout if the repository is meant to be that large", r.host, r.timeout)
	}
	fault := r.wire.firstFault()
	if text := r.wire.errLine(); fault == nil && text != "" {
		fault = refusalOf(text, r.refs == nil)
	}
	return remoteError(ctx, r.host, r.auth, fault, err)
}

// ForgetRefs lets go of the refs listed, of which there may be a million. A fetch needs none.
func (r *Session) ForgetRefs() { r.refs.References, r.refs.Peeled = nil, nil }

// Close ends the conversation, wherever it stands.
func (r *Session) Close() {
	_ = r.session.Close()
	r.wire.close()
}

// recoverTo turns a panic in go-git, which a hostile answer may provoke, into an error.
func recoverTo(err *error) {
	if cause := recover(); cause != nil {
		*err = errors.Join(errGarbage, fmt.Errorf("panic: %v", cause))
	}
}

var errGarbage = errors.New("cannot make sense of the answer")

// Limits bounds one conversation.
type Limits struct {
	MaxPackBytes int64         // bytes read per fetch
	Timeout      time.Duration // for the list of refs, and for each fetch
}

// Tip is where a ref stands on the remote.
type Tip struct {
	Ref       events.Ref
	IsDefault bool      // ref is the remote's default branch
	Want      object.ID // what to ask for: the ref's own object, perhaps a tag
	Commit    object.ID // the commit it comes down to; zero when only the tag itself can tell
}

// Resolve finds ref, or the default branch when ref is zero, among the refs listed.
func (r *Session) Resolve(ref events.Ref) (Tip, error) {
	defaultName := r.defaultBranch()
	name := ref.String()
	if name == "" {
		name = defaultName
	}
	if name == "" {
		return Tip{}, events.Errorf(events.Permanent, events.ClassNoRef,
			"the repository at %s does not say which branch is its default; name a ref in the change", r.host)
	}
	parsed, err := events.ParseRef(name)
	if err != nil || parsed.String() != name { // a short name, or HEAD
		return Tip{}, events.Errorf(events.Permanent, events.ClassNoRef,
			"the default branch at %s: %w; correct its HEAD, or name a ref in the change", r.host, events.ErrBadRef)
	}
	want, ok := r.refs.References[name]
	if !ok {
		return Tip{}, events.Errorf(events.Permanent, events.ClassNoRef, "the repository at %s has no ref %s", r.host, name)
	}
	t := Tip{Ref: parsed, IsDefault: name == defaultName, Want: want, Commit: want}
	if peeled, ok := r.refs.Peeled[name]; ok {
		t.Commit = peeled
	} else if strings.HasPrefix(name, "refs/tags/") {
		t.Commit = object.ZeroID // perhaps a tag, of a server that does not peel
	}
	return t, nil
}

// defaultBranch returns the full name of the remote's default branch, or "". Of a server that does
// not say, it is the branch at the server's HEAD; main and master come before all others.
func (r *Session) defaultBranch() string {
	for _, symref := range r.refs.Capabilities.Get(capability.SymRef) {
		if target, ok := strings.CutPrefix(symref, "HEAD:"); ok {
			return target
		}
	}
	atHead := func(name string) bool {
		hash, ok := r.refs.References[name]
		return ok && (r.refs.Head == nil || hash == *r.refs.Head)
	}
	for _, name := range []string{"refs/heads/main", "refs/heads/master"} {
		if atHead(name) {
			return name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.refs.References)) {
		if r.refs.Head != nil && strings.HasPrefix(name, "refs/heads/") && atHead(name) {
			return name
		}
	}
	return ""
}

// CheckURL refuses URLs that are not of a Git remote over HTTP, HTTPS or SSH.
func CheckURL(url string) error {
	if err := events.CheckRemote(url); err != nil {
		return events.Errorf(events.Permanent, events.ClassConfig, "remote: %w", err)
	}
	return nil
}

// DialAndList dials a remote and lists its refs; an empty repository has none. The caller closes the session.
func (n *Network) DialAndList(ctx context.Context, url string, auth Auth, foreign bool, limits Limits) (*Session, error) {
	r, err := n.Dial(url, auth, foreign, limits)
	if err != nil {
		return nil, err
	}
	err = r.List(ctx)
	if events.ClassOf(err) == events.ClassNoRef {
		r.refs, err = nil, nil
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
