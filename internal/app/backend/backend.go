// Package backend implements the interfaces of package handlers with a volume and with Redis.
package backend

import (
	"cmp"
	"context"
	"encoding/base64"
	"unicode/utf8"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/credential"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// New returns handlers that work on a volume.
func New(volume *volume.Volume, states *state.Store, credentials *credential.Store, registry *watch.Registry) handlers.Handlers {
	return handlers.Handlers{
		Repos: repos{volume}, States: states, Credentials: secrets{credentials}, Watches: Watches{registry}, Keys: keys{credentials},
		Views: views{volume, states},
	}
}

type repos struct{ *volume.Volume }

func (r repos) Sync(ctx context.Context, req handlers.SyncRequest) (handlers.SyncResult, error) {
	s, err := r.Volume.Sync(ctx, volume.SyncRequest{
		Repo: req.Repo, URL: req.Remote.URL, Ref: req.Ref, Pin: req.Pin, Auth: wire.Auth(req.Remote.Secret), Fence: req.Fence, Depth: req.Depth,
		Foreign: req.Remote.Foreign, Base: req.Base, Known: volume.Tip(req.Known), Confirm: req.Confirm, Progress: req.Progress,
		LFS: selectionOf(req.LFS), Submodules: req.Submodules, Refetch: req.Refetch, AuthFor: authFor(req.Remote), Gate: gateOf(req.Remote), Check: checkOf(req),
		Submodule: submoduleOf(req),
	})
	return handlers.SyncResult{
		Tip: handlers.Tip{Ref: s.Ref, Commit: s.After}, Before: s.Before, Path: s.Path, Tree: s.Tree,
		Files: s.Files, Full: s.Full, Truncated: s.Truncated, Asked: s.Asked, Forced: s.Forced, Damaged: s.Damaged,
		Missing: missingOf(s.Missing),
	}, err
}

// maxMissing is the maximum number of missing submodules in a result.
const maxMissing = 100

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

// submoduleOf returns [volume.SyncRequest.Submodule] for a request, or nil if there is none.
func submoduleOf(req handlers.SyncRequest) func(context.Context, string) (volume.PartRemote, error) {
	if req.Submodule == nil {
		return nil
	}
	return func(ctx context.Context, url string) (volume.PartRemote, error) {
		r, err := req.Submodule(ctx, url)
		return volume.PartRemote{
			Auth: wire.Auth(r.Secret), AuthFor: authFor(r.Remote), Gate: gateOf(r.Remote), Credential: r.Credential, Refused: r.Refused,
		}, err
	}
}

// checkOf returns the check of a request for package volume, or nil if there is none.
func checkOf(req handlers.SyncRequest) func(volume.Tip, bool) volume.Check {
	if req.Check == nil {
		return nil
	}
	return func(tip volume.Tip, isDefault bool) volume.Check {
		check := req.Check(handlers.Tip(tip), isDefault)
		if check == nil {
			return nil
		}
		return func(ctx context.Context, c volume.Candidate) error {
			return check(ctx, handlers.Candidate{
				Tip: handlers.Tip(c.Tip), Default: c.Default, Object: c.Object, Published: c.Published, Commits: c.Commits,
				Partial: c.Partial, Rewound: c.Rewound, Unknown: c.Unknown, Read: c.Read,
			})
		}
	}
}

func (r repos) Remove(ctx context.Context, req handlers.RemoveRequest) error {
	remove := r.Volume.Remove
	if !req.Ref.IsZero() {
		remove = r.RemoveRef
	}
	_, err := remove(ctx, volume.RemoveRequest{
		Repo: req.Repo, Ref: req.Ref, URL: req.Remote.URL, Auth: wire.Auth(req.Remote.Secret), Fence: req.Fence,
		Force: req.Force, Plain: req.Force, Foreign: req.Remote.Foreign, Confirm: req.Confirm, Gate: gateOf(req.Remote),
	})
	return err
}

func (r repos) Move(ctx context.Context, req handlers.MoveRequest) (handlers.MoveResult, error) {
	moved, err := r.Volume.Move(ctx, volume.MoveRequest{
		From: req.From, To: req.To, URL: req.Remote.URL, Auth: wire.Auth(req.Remote.Secret), OldAuth: wire.Auth(req.FormerSecret),
		Fence: req.Fence, ToFence: req.ToFence, Foreign: req.Remote.Foreign, Confirm: req.Confirm, Gate: gateOf(req.Remote),
	})
	return handlers.MoveResult(moved), err
}

func (r repos) ListRefs(ctx context.Context, repo events.RepoPath, remote handlers.Remote) (handlers.Refs, error) {
	refs, err := r.Volume.ListRefs(ctx, volume.ListRefsRequest{
		Repo: repo, URL: remote.URL, Auth: wire.Auth(remote.Secret), Foreign: remote.Foreign, Gate: gateOf(remote),
	})
	return handlers.Refs(refs), err
}

func (r repos) ListedRefs(repo events.RepoPath) (map[events.Ref]handlers.ListedRef, error) {
	stored, err := r.Volume.ListedRefs(repo)
	if stored == nil {
		return nil, err
	}
	refs := make(map[events.Ref]handlers.ListedRef, len(stored))
	for ref, one := range stored {
		refs[ref] = handlers.ListedRef(one)
	}
	return refs, err
}

func (r repos) SetListedRefs(ctx context.Context, repo events.RepoPath, fence uint64, refs map[events.Ref]handlers.ListedRef) error {
	if refs == nil {
		return r.Volume.SetListedRefs(ctx, repo, fence, nil)
	}
	stored := make(map[events.Ref]volume.ListedRef, len(refs))
	for ref, one := range refs {
		stored[ref] = volume.ListedRef(one)
	}
	return r.Volume.SetListedRefs(ctx, repo, fence, stored)
}

func (r repos) Published(repo events.RepoPath) (handlers.Published, bool, error) {
	p, ok, err := r.Volume.Published(repo)
	published := handlers.Published{
		Commits: p.Commits, Changed: p.Changed, LFS: map[events.Ref]handlers.LFS{}, Submodules: p.Submodules, Incomplete: p.Incomplete, Damaged: p.Damaged,
		Plain: p.Plain, Remote: p.Remote, Fetched: p.Fetched,
		Missing: map[events.Ref][]handlers.MissingRemote{},
	}
	for ref, parts := range p.Missing {
		for _, part := range parts {
			published.Missing[ref] = append(published.Missing[ref], handlers.MissingRemote{URL: part.URL, Credential: part.Credential})
		}
	}
	for ref, selection := range p.LFS {
		for _, f := range selection {
			published.LFS[ref] = append(published.LFS[ref], handlers.LFSFilter(f))
		}
	}
	return published, ok, err
}

func selectionOf(wanted handlers.LFS) (s lfs.Selection) {
	for _, f := range wanted {
		s = append(s, lfs.Filter(f))
	}
	return s
}

// authFor returns [volume.SyncRequest.AuthFor] for a remote.
func authFor(remote handlers.Remote) func(context.Context, string) (wire.Auth, error) {
	if remote.SecretFor == nil {
		return nil
	}
	return func(ctx context.Context, url string) (wire.Auth, error) {
		secret, err := remote.SecretFor(ctx, url)
		return wire.Auth(secret), err
	}
}

// gateOf returns the gate of a remote for package wire, or nil if there is none.
func gateOf(remote handlers.Remote) wire.Gate {
	if remote.Gate == nil {
		return nil
	}
	return gate{remote.Gate}
}

type gate struct{ handlers.Gate }

func (g gate) Enter(ctx context.Context, host string, optional bool) (wire.Permit, error) {
	held, err := g.Gate.Enter(ctx, host, optional)
	if optional && events.ClassOf(err) == events.ClassLimited {
		return nil, wire.ErrNoPermit
	}
	if err != nil {
		return nil, err
	}
	return permit{held}, nil
}

type permit struct{ handlers.HostPermit }

func (p permit) Done(ctx context.Context, a wire.Answer) error {
	return p.HostPermit.Done(ctx, handlers.HostAnswer(a))
}

type keys struct{ *credential.Store }

func (k keys) VerificationKeys(name string) (handlers.Keys, error) {
	texts, err := k.Store.VerificationKeys(name)
	return handlers.Keys(texts), err
}

type secrets struct{ *credential.Store }

func (s secrets) Resolve(ctx context.Context, name, remote string) (handlers.Secret, error) {
	secret, err := s.Store.Resolve(ctx, name, remote)
	return handlers.Secret(secret), err
}

func (s secrets) Refused(name string, secret handlers.Secret) bool {
	return s.Store.Refused(name, credential.Secret(secret))
}

// Watches implements [handlers.Watches].
type Watches struct{ *watch.Registry }

// Of returns the watches of a repository.
func (w Watches) Of(ctx context.Context, repo events.RepoPath) ([]handlers.Watch, error) {
	set, err := w.Registry.Of(ctx, repo)
	watches := make([]handlers.Watch, 0, len(set.Watches))
	for _, one := range set.Watches {
		w := handlers.Watch{
			App: one.App, Repo: one.Repo, URL: one.URL, Ref: one.Ref, MaxRefs: cmp.Or(one.MaxRefs, watch.DefaultMaxRefs), Credential: one.Credential, Depth: one.Depth, Foreign: one.Auto,
			Verify: handlers.Verify(one.Verify), VerifyKeys: one.VerifyKeys, NoRewind: one.NoRewind, Submodules: one.Submodules,
			SubmoduleCredentials: one.SubmoduleCredentials, FollowMoves: one.FollowMoves,
		}
		if one.LFS == watch.LFSFetch {
			w.LFS = &handlers.LFSFilter{Include: one.LFSInclude, Exclude: one.LFSExclude}
		}
		if one.Views.Len() > 0 {
			w.Views, w.ViewTrees = one.Views, one.ViewTrees
		}
		watches = append(watches, w)
	}
	return watches, err
}

// Move moves the watches of a repository to another path and remote.
func (w Watches) Move(ctx context.Context, from, to events.RepoPath, url string) error {
	_, err := w.Registry.Move(ctx, from, to, url)
	return err
}

// Circuits implements [handlers.CircuitStore].
type Circuits struct{ *state.Store }

// Circuit returns the circuit breaker of repo.
func (c Circuits) Circuit(ctx context.Context, repo events.RepoPath) (handlers.CircuitState, error) {
	circuit, err := c.Store.Circuit(ctx, repo)
	return handlers.CircuitState(circuit), err
}

// Failed counts a failure.
func (c Circuits) Failed(ctx context.Context, repo events.RepoPath, fence uint64, p handlers.CircuitPolicy) (handlers.CircuitState, bool, error) {
	circuit, opened, err := c.Store.Failed(ctx, repo, fence, state.CircuitPolicy(p))
	return handlers.CircuitState(circuit), opened, err
}
