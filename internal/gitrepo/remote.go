package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"lockstep/events"
)

// remote is one operation's conversation with a repository's server.
type remote struct {
	host    string
	auth    Auth
	wire    *wire
	session transport.UploadPackSession
	refs    *packp.AdvRefs
}

// dial prepares a conversation; nothing is sent yet. The URL has no credentials in it.
func (v *Volume) dial(rawURL string, auth Auth) (*remote, error) {
	if err := events.CheckRemote(rawURL); err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: %w", err)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: the URL does not parse")
	}
	endpoint, err := transport.NewEndpoint(rawURL)
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: the URL does not parse")
	}
	w := &wire{next: v.net, maxPack: v.cfg.MaxPackBytes}
	// go-git's client follows redirects of the first request only, never from https to http, and
	// withholds credentials once a redirect has left the remote's origin.
	session, err := githttp.NewClient(&http.Client{Transport: w}).NewUploadPackSession(endpoint, auth.method())
	if err != nil {
		return nil, events.Errorf(events.Permanent, events.ClassConfig, "remote: prepare to ask %s", u.Host)
	}
	return &remote{host: u.Host, auth: auth, wire: w, session: session}, nil
}

// list asks for the remote's refs. Success proves the credential.
func (r *remote) list(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = remoteError(ctx, r.host, r.auth, r.wire.firstFault(), err)
		}
	}()
	defer recoverTo(&err)
	r.refs, err = r.session.AdvertisedReferencesContext(ctx)
	return err
}

// forgetRefs lets go of the refs listed, of which there may be a million. A fetch needs none.
func (r *remote) forgetRefs() { r.refs.References, r.refs.Peeled = nil, nil }

// close ends the conversation, wherever it stands.
func (r *remote) close() { r.wire.close() }

// recoverTo turns a panic in go-git, which a hostile answer may provoke, into an error.
func recoverTo(err *error) {
	if cause := recover(); cause != nil {
		*err = errors.Join(errGarbage, fmt.Errorf("panic: %v", cause))
	}
}

var errGarbage = errors.New("cannot make sense of the answer")

// tip is where a ref stands on the remote.
type tip struct {
	ref       events.Ref
	isDefault bool          // ref is the remote's default branch
	want      plumbing.Hash // what to ask for: the ref's own object, perhaps a tag
	commit    plumbing.Hash // the commit it comes down to; zero when only the tag itself can tell
}

// resolve finds ref, or the default branch when ref is zero, among the refs listed.
func (r *remote) resolve(ref events.Ref) (tip, error) {
	defaultName := r.defaultBranch()
	name := ref.String()
	if name == "" {
		name = defaultName
	}
	if name == "" {
		return tip{}, events.Errorf(events.Permanent, events.ClassNoRef,
			"the repository at %s does not say which branch is its default; name a ref in the change", r.host)
	}
	parsed, err := events.ParseRef(name)
	if err == nil && parsed.String() != name { // a short name, or HEAD
		err = events.ErrBadRef
	}
	if err != nil {
		return tip{}, events.Errorf(events.Permanent, events.ClassNoRef, "the default branch at %s: %w", r.host, err)
	}
	want, ok := r.refs.References[name]
	if !ok {
		return tip{}, events.Errorf(events.Permanent, events.ClassNoRef, "the repository at %s has no ref %s", r.host, name)
	}
	t := tip{ref: parsed, isDefault: name == defaultName, want: want, commit: want}
	if peeled, ok := r.refs.Peeled[name]; ok {
		t.commit = peeled
	} else if strings.HasPrefix(name, "refs/tags/") {
		t.commit = plumbing.ZeroHash // perhaps a tag, of a server that does not peel
	}
	return t, nil
}

// defaultBranch returns the full name of the remote's default branch, or "". Of a server that does
// not say, it is the branch at the server's HEAD; main and master come before all others.
func (r *remote) defaultBranch() string {
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
