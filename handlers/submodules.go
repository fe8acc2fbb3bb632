package handlers

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"unicode/utf8"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// submodulesOf returns the strictest setting of the watches of a ref.
func submodulesOf(watches []watch.Watch, ref events.Ref, isDefault bool) (wanted events.Submodules) {
	for _, w := range watches {
		if w.Selects(ref, isDefault) {
			wanted = wanted.Or(submodules.Of(w).Mode)
		}
	}
	return wanted
}

// scope is a credential for submodules.
type scope struct {
	name string
	urls []string // its URL prefixes
}

// scopes are the credentials for submodules that the watches of a ref name. The apps of a ref share one tree,
// so a sync uses them all, whichever app it is for.
type scopes []scope

// scopesOf returns the credentials for submodules of the watches of a ref. A credential without a
// secret or URL prefixes is an error if the app names it, and is skipped if only other apps do,
// because the app cannot correct it. app is "" for none.
func (h *Handlers) scopesOf(
	watches []watch.Watch, ref events.Ref, isDefault bool, app string,
) (found scopes, err error) {
	for _, w := range watches {
		if !w.Selects(ref, isDefault) {
			continue
		}
		for _, name := range submodules.Of(w).Credentials {
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

// best returns the name of the credential with the longest URL prefix that covers a URL, the first of
// several; "" for none.
func (s scopes) best(url string) (name string) {
	longest := 0
	for _, one := range s {
		if length := credential.Covers(one.urls, url); length > longest {
			name, longest = one.name, length
		}
	}
	return name
}

// submoduleRemote returns [volume.SyncRequest.Submodule] for the sync of a job from a source.
func (h *Handlers) submoduleRemote(
	job Job, from source, named scopes,
) func(context.Context, string) (volume.PartRemote, error) {
	ownAuth := h.authFor(from)
	authFor := func(ctx context.Context, url string) (name string, auth wire.Auth, err error) {
		if name = named.best(url); name != "" {
			auth, err = h.Credentials.Resolve(ctx, name, url)
			return name, auth, err
		}
		auth, err = ownAuth(ctx, url)
		if auth.IsZero() {
			return "", auth, err
		}
		return from.credential, auth, err
	}
	return func(ctx context.Context, url string) (volume.PartRemote, error) {
		name, auth, err := authFor(ctx, url)
		remote := volume.PartRemote{Auth: auth, Limiter: job.limiter(name), Credential: named.best(url)}
		remote.AuthFor = func(ctx context.Context, url string) (wire.Auth, error) {
			if !mayHaveSecret(url) {
				return wire.Auth{}, nil
			}
			_, auth, err := authFor(ctx, url)
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
				again = h.Credentials.Refused(name, auth)
			}
			return fmt.Errorf("%w (credential %q)", err, name), again
		}
		return remote, err
	}
}

// maxMissing is the maximum number of missing submodules in a result.
const maxMissing = 100

// missingOf returns the missing submodules for a result.
func missingOf(parts []checkout.Part) (missing []events.MissingSubmodule) {
	for _, part := range parts[:min(len(parts), maxMissing)] {
		m := events.MissingSubmodule{Path: part.Path, Class: events.Class(part.Class), Error: part.Why}
		if !utf8.ValidString(part.Path) {
			m.Raw = base64.StdEncoding.EncodeToString([]byte(part.Path))
		}
		missing = append(missing, m)
	}
	return missing
}

// missesCredential reports whether a sync for a watch may have another outcome for submodules that are
// missing: another credential covers their URL now, or one that the watch names is not usable, which the sync
// reports.
func (h *Handlers) missesCredential(
	watches []watch.Watch, w watch.Watch, ref events.Ref, isDefault bool, missing []checkout.Part,
) bool {
	if len(submodules.Of(w).Credentials) == 0 && len(missing) == 0 {
		return false
	}
	named, err := h.scopesOf(watches, ref, isDefault, w.App)
	return err != nil || slices.ContainsFunc(missing, func(m checkout.Part) bool {
		return m.URL != "" && named.best(m.URL) != m.Credential
	})
}
