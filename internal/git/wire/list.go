package wire

import (
	"context"
	"errors"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// List lists the remote's refs. With prefixes, it needs only the refs that begin with one of them and the
// default branch; a server of protocol 0 lists all refs nevertheless. It fails if there is none, unless the prefix is a
// commit and the server may send it under protocol 2. Success proves that the credential is
// accepted.
func (r *Session) List(ctx context.Context, prefixes ...string) error {
	return r.do(ctx, func(ctx context.Context) (err error) {
		r.refs, err = r.list(ctx, prefixes)
		return err
	})
}

func (r *Session) list(ctx context.Context, prefixes []string) (*advertisement, error) {
	if offered := r.net.remotes.recall(r.url); offered != nil && r.carrier.canPost() {
		r.offered = offered
		refs, err := r.listRefs(ctx, prefixes)
		if !r.isUnexpected(ctx, err) {
			return refs, err
		}
		r.wire.begin()
	}
	refs, err := r.hello(ctx)
	if err != nil || r.offered == nil {
		return refs, err
	}
	refs, err = r.listRefs(ctx, prefixes)
	if err == nil && r.carrier.canPost() {
		r.net.remotes.remember(r.url, r.offered)
	}
	return refs, err
}

// hello sends the first request. It returns the refs under protocol 0, and nil under protocol 2.
func (r *Session) hello(ctx context.Context) (*advertisement, error) {
	r.offered = nil
	body, err := r.carrier.advertise(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	refs, offered, err := readAdvertisement(body)
	switch {
	case err == nil && offered == nil && refs.isEmpty():
		r.carrier.close()
		return nil, errEmptyRepository
	case err != nil:
		r.carrier.abort(err, true)
		return nil, err
	}
	drain(body)
	if r.offered = offered; offered != nil {
		return nil, nil
	}
	r.capabilities = refs.capabilities
	return refs, nil
}

// listRefs lists refs with protocol 2. It lists all if HEAD is missing, as when it names no branch that
// exists: the default branch is then chosen from them, as under protocol 0.
func (r *Session) listRefs(ctx context.Context, prefixes []string) (*advertisement, error) {
	if len(prefixes) > 0 {
		refs, err := r.sendListRefs(ctx, append([]string{"HEAD"}, prefixes...))
		if err != nil || !refs.head.IsZero() {
			return refs, err
		}
	}
	refs, err := r.sendListRefs(ctx, nil)
	isCommit := len(prefixes) > 0 && object.IsID(prefixes[0]) // which the server may send although it lists no ref
	if err == nil && refs.isEmpty() && !isCommit {
		r.carrier.close()
		return nil, errEmptyRepository
	}
	return refs, err
}

func (r *Session) sendListRefs(ctx context.Context, prefixes []string) (*advertisement, error) {
	body, err := r.carrier.post(ctx, r.offered.lsRefs(prefixes), true, true)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	refs, err := r.offered.readRefs(newPktReader(body))
	if err != nil {
		r.carrier.abort(err, true)
		return nil, err
	}
	drain(body)
	return refs, nil
}

// isUnexpected reports whether the capabilities that are remembered are to be asked for again, because of
// err, the result of a request that relied on them. It forgets them if they may be wrong. It is false if the
// host fails or limits requests.
func (r *Session) isUnexpected(ctx context.Context, err error) bool {
	if err == nil || errors.Is(err, errEmptyRepository) || ctx.Err() != nil {
		return false
	}
	fault := r.wire.firstError()
	status, isStatus := errors.AsType[statusError](fault)
	_, isInvalid := errors.AsType[*responseFault](fault)
	isPage := errors.Is(fault, errWebPage) || errors.Is(fault, errLoginPage)
	if fault != nil && !isStatus && !isInvalid && !isPage {
		return false
	}
	r.net.remotes.forget(r.url)
	if line, _ := errors.AsType[errorLine](err); refusalOf(string(line), true).class == git.ClassBusy {
		return false
	}
	return !isStatus || status.code < 500 && !status.limited
}

// DialAndList dials a remote and lists its refs, as [Session.List]; an empty repository has none. The caller
// closes the session.
func (n *Network) DialAndList(
	ctx context.Context, url string, auth Auth, foreign bool, limits Limits, prefixes ...string,
) (*Session, error) {
	r, err := n.Dial(url, auth, foreign, limits)
	if err != nil {
		return nil, err
	}
	err = r.List(ctx, prefixes...)
	if git.ClassOf(err) == git.ClassNoRef {
		r.refs, err = nil, nil
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
