package handlers

import (
	"context"
	"fmt"
	"slices"

	"lockstep/events"
	"lockstep/internal/credential"
)

// submoduleError is an error of [Repos] about a submodule, not about the repository itself.
type submoduleError interface {
	error
	Submodule() string // its path
}

// submodulesOf returns the strictest setting of the watches of a ref, as with [Verify].
func submodulesOf(watches []Watch, ref events.Ref, isDefault bool) (wanted events.Submodules) {
	for _, w := range watches {
		if w.selects(ref, isDefault) {
			wanted = wanted.Or(w.Submodules)
		}
	}
	return wanted
}

func (w Watch) selects(ref events.Ref, isDefault bool) bool {
	return w.Ref.Matches(ref) || isDefault && w.Ref.IsDefault()
}

// scope is a credential for submodules.
type scope struct {
	name string
	urls []string // its URL prefixes
}

// scopes are the credentials for submodules that the watches of a ref name. The apps of a ref share one tree, so a sync uses them all,
// whichever app it is for.
type scopes []scope

// scopesOf returns the credentials for submodules of the watches of a ref. A credential without a
// secret or URL prefixes is an error if the app names it, and is skipped if only other apps do,
// because the app cannot correct it. app is "" for none.
func (h *Handlers) scopesOf(watches []Watch, ref events.Ref, isDefault bool, app string) (found scopes, err error) {
	for _, w := range watches {
		if !w.selects(ref, isDefault) {
			continue
		}
		for _, name := range w.SubmoduleCredentials {
			if slices.ContainsFunc(found, func(s scope) bool { return s.name == name }) {
				continue
			}
			urls, err := h.Credentials.URLs(name)
			switch {
			case err == nil:
				found = append(found, scope{name, urls})
			case w.App == app, events.DispositionOf(err) != events.Permanent:
				return nil, fmt.Errorf("submodules: %w", err)
			}
		}
	}
	return found, nil
}

// best returns the name of the credential with the longest URL prefix that covers a URL, the first of several; "" for none.
func (s scopes) best(url string) (name string) {
	longest := 0
	for _, one := range s {
		if length := credential.Covers(one.urls, url); length > longest {
			name, longest = one.name, length
		}
	}
	return name
}

// submoduleRemote returns [SyncRequest.Submodule] for a sync from a source.
func (h *Handlers) submoduleRemote(from source, own Remote, named scopes) func(context.Context, string) (SubmoduleRemote, error) {
	secretFor := func(ctx context.Context, url string) (name string, secret Secret, err error) {
		if name = named.best(url); name != "" {
			secret, err = h.Credentials.Resolve(ctx, name, url)
			return name, secret, err
		}
		secret, err = own.SecretFor(ctx, url)
		if secret == (Secret{}) {
			return "", secret, err
		}
		return from.credential, secret, err
	}
	return func(ctx context.Context, url string) (SubmoduleRemote, error) {
		name, secret, err := secretFor(ctx, url)
		remote := SubmoduleRemote{Remote: Remote{URL: url, Secret: secret, Foreign: own.Foreign, Gate: own.Gate}, Credential: named.best(url)}
		if g, ok := own.Gate.(gate); ok {
			g.credential = name
			remote.Gate = g
		}
		remote.SecretFor = func(ctx context.Context, url string) (Secret, error) {
			if !mayHaveSecret(url) {
				return Secret{}, nil
			}
			_, secret, err := secretFor(ctx, url)
			return secret, err
		}
		remote.Refused = func(err error) (report error, again bool) {
			switch class := events.ClassOf(err); {
			case class != events.ClassAuth && class != events.ClassNotFound:
				return err, false
			case name == "":
				return fmt.Errorf("%w; it was asked without a credential: add its URL to the urls of one that the watch names with --submodule-credential", err), false
			case class == events.ClassAuth && remote.Credential != "":
				again = h.Credentials.Refused(name, secret)
			}
			return fmt.Errorf("%w (credential %q)", err, name), again
		}
		return remote, err
	}
}

// missesCredential reports whether a sync for a watch may have another outcome for submodules that are missing: another credential
// covers their URL now, or one that the watch names is not usable, which the sync reports.
func (h *Handlers) missesCredential(watches []Watch, w Watch, ref events.Ref, isDefault bool, missing []MissingRemote) bool {
	if len(w.SubmoduleCredentials) == 0 && len(missing) == 0 {
		return false
	}
	named, err := h.scopesOf(watches, ref, isDefault, w.App)
	return err != nil || slices.ContainsFunc(missing, func(m MissingRemote) bool { return m.URL != "" && named.best(m.URL) != m.Credential })
}
