package submodules

import (
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// New returns the extension. It fetches submodules with credentials.
func New(credentials *credential.Store) ext.Extension {
	return ext.Extension{
		Name: Name, Join: func(s ext.Sync) ext.Part { return part{s, credentials, map[string]prefixes{}} },
		Asks: func(s ext.Sync) bool {
			return s.Change.Submodules != events.SubmodulesOff || len(s.Published.Submodules) > 0
		},
	}
}

type part struct {
	ext.Sync
	credentials *credential.Store
	prefixes    map[string]prefixes // by credential, read once in a sync, which may cover changes of many apps
}

// prefixes are the URL prefixes of a credential, or why there are none.
type prefixes struct {
	urls []string
	err  error
}

// Fill implements [ext.Filler].
func (p part) Fill(req *volume.SyncRequest, app string, ref events.Ref, isDefault bool) error {
	named, err := p.scopes(app, ref, isDefault)
	if err != nil {
		return err
	}
	req.Submodules = p.mode(ref, isDefault)
	req.Submodule = p.remote(named)
	return nil
}

// IsFilled implements [ext.Filler]. A sync may have another outcome for submodules that are missing if another
// credential covers their URL now, or one that the watch names is not usable, which the sync reports.
func (p part) IsFilled(w watch.Watch, ref events.Ref, isDefault bool) bool {
	missing := p.Published.Missing[ref]
	switch {
	case p.Published.Submodules[ref] != p.mode(ref, isDefault):
		return false
	case len(Of(w).Credentials)+len(missing) == 0:
		return true
	}
	named, err := p.scopes(w.App, ref, isDefault)
	return err == nil && !slices.ContainsFunc(missing, func(m checkout.Part) bool {
		return m.URL != "" && named.best(p.Asked(m.URL)) != m.Credential
	})
}

// mode returns the strictest setting of the change and of the watches of a ref.
func (p part) mode(ref events.Ref, isDefault bool) events.Submodules {
	strictest := p.Change.Submodules
	for _, w := range p.Watches {
		if w.Selects(ref, isDefault) {
			strictest = strictest.Or(Of(w).Mode)
		}
	}
	return strictest
}

// scope is a credential for submodules.
type scope struct {
	name string
	urls []string // its URL prefixes
}

// scopes are the credentials for submodules that the watches of a ref name. A sync uses them all, whichever app it is for.
type scopes []scope

// scopes returns the credentials for submodules of the watches of a ref. A credential without a secret or URL prefixes
// is an error if the app names it, and is skipped if only other apps do, because the app cannot correct it.
func (p part) scopes(app string, ref events.Ref, isDefault bool) (found scopes, err error) {
	for _, w := range p.Watches {
		if !w.Selects(ref, isDefault) {
			continue
		}
		for _, name := range Of(w).Credentials {
			if slices.ContainsFunc(found, func(s scope) bool { return s.name == name }) {
				continue
			}
			of, isKnown := p.prefixes[name]
			if !isKnown {
				of.urls, of.err = p.credentials.URLs(name)
				p.prefixes[name] = of
			}
			switch {
			case of.err == nil:
				found = append(found, scope{name, of.urls})
			case w.App == app, events.DispositionOf(of.err) != events.Permanent:
				return nil, fmt.Errorf("submodules: %w", of.err)
			}
		}
	}
	return found, nil
}

// best returns the name of the credential with the longest URL prefix that covers a URL, the first of
// several; "" for none.
func (s scopes) best(url string) (name string) {
	if !credential.MayBeSent(url) {
		return ""
	}
	longest := 0
	for _, one := range s {
		if length := credential.Covers(one.urls, url); length > longest {
			name, longest = one.name, length
		}
	}
	return name
}

// resolve returns the credential for a URL, and its name, "" for none: the best of those that are named, or the change's
// own.
func (p part) resolve(ctx context.Context, named scopes, url string) (name string, auth wire.Auth, err error) {
	if name = named.best(url); name != "" {
		auth, err = p.credentials.Resolve(ctx, name, url)
		return name, auth, err
	}
	auth, err = p.credentials.ResolveOther(ctx, p.Change.Credential, url)
	if auth.IsZero() {
		return "", auth, err
	}
	return p.Change.Credential, auth, err
}

// remote returns [volume.SyncRequest.Submodule].
func (p part) remote(named scopes) func(context.Context, string) (volume.PartRemote, error) {
	return func(ctx context.Context, url string) (volume.PartRemote, error) {
		name, auth, err := p.resolve(ctx, named, url)
		remote := volume.PartRemote{Auth: auth, Limiter: p.Limiter(name), Credential: named.best(url)}
		remote.AuthFor = func(ctx context.Context, url string) (wire.Auth, error) {
			_, auth, err := p.resolve(ctx, named, url)
			return auth, err
		}
		remote.Refused = func(err error) (report error, again bool) {
			switch class := events.ClassOf(err); {
			case class != events.ClassAuth && class != events.ClassNotFound:
				return err, false
			case name == "":
				return fmt.Errorf("%w; it was asked without a credential: add its URL to the urls of one that the watch names "+
					"with --submodule-credential", err), false
			case class == events.ClassAuth && remote.Credential != "":
				again = p.credentials.Refused(name, auth)
			}
			return err, again
		}
		return remote, err
	}
}
