package handlers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"lockstep/events"
	"lockstep/internal/credential"
)

// Repos manages the clones on a volume. Its errors carry an [events.Disposition] and class. One about a submodule has the method
// Submodule() string, which returns its path.
type Repos interface {
	// Sync fetches one ref and publishes its tree.
	Sync(ctx context.Context, req SyncRequest) (SyncResult, error)
	// Remove removes a repository, or unpublishes one ref of it. Removing what does not exist is not an error.
	Remove(ctx context.Context, req RemoveRequest) error
	// Move moves a repository to another path, or binds its path to another remote, without fetching it again.
	Move(ctx context.Context, req MoveRequest) (MoveResult, error)
	// ListRefs lists the remote's branches and tags, as git ls-remote does.
	ListRefs(ctx context.Context, repo events.RepoPath, remote Remote) (Refs, error)
	// Published returns what readers see of a repository. It is false if the repository is not on the volume.
	Published(repo events.RepoPath) (Published, bool, error)
	// ListedRefs returns the refs that SetListedRefs has stored, nil if none were.
	ListedRefs(repo events.RepoPath) (map[events.Ref]ListedRef, error)
	// SetListedRefs replaces the refs that a poll has listed; nil deletes them. fence is that of the lease on repo.
	SetListedRefs(ctx context.Context, repo events.RepoPath, fence uint64, refs map[events.Ref]ListedRef) error
}

// States reads and writes the state of repositories in Redis.
type States interface {
	// Fields returns the fields that earlier outcomes have set in the state of a repository, none if it has no state.
	Fields(ctx context.Context, repo events.RepoPath) (map[string]string, error)
	// SetMisses stores how often the remote lacked the commit that an entry announces for ref.
	SetMisses(ctx context.Context, repo events.RepoPath, ref events.Ref, entry string, times int) error
	// Deny stores that the remote refuses a credential of an app, until an outcome drops the field.
	Deny(ctx context.Context, repo events.RepoPath, app, credential string, class events.Class) error
}

// Credentials resolves credential names to secrets.
type Credentials interface {
	// Resolve returns the secret for a name, if it may be sent to the remote. The empty name is anonymous.
	Resolve(ctx context.Context, name, remote string) (Secret, error)
	// Refused reports that a remote refused a secret, and returns whether Resolve may return a better one now.
	Refused(name string, secret Secret) bool
	// URLs returns the URL prefixes that a credential may be sent to. It fails if there are none, or no such credential.
	URLs(name string) ([]string, error)
}

// Watches is the registry of watches.
type Watches interface {
	// Of returns the watches on a repository.
	Of(ctx context.Context, repo events.RepoPath) ([]Watch, error)
	// Move moves the watches of a repository to another path and remote.
	Move(ctx context.Context, from, to events.RepoPath, url string) error
}

// Remote is where a repository is fetched from, and how.
type Remote struct {
	URL     string // http, https or ssh, without credentials
	Secret  Secret // for this operation only; zero is anonymous
	Foreign bool   // the URL comes from a webhook's payload, not from the operator
	Gate    Gate   // admits the requests; nil for no limits

	// SecretFor returns the secret for another URL that belongs to the repository, such as that of its LFS server; zero if the
	// credential may not be sent there. Nil if there is none for any URL.
	SecretFor func(ctx context.Context, url string) (Secret, error)
}

// SubmoduleRemote is where a submodule is fetched from, and how.
type SubmoduleRemote struct {
	Remote

	// Credential is the name of the credential for submodules that the secret belongs to. It is ""
	// if none covers the URL: then the secret is that of the change if its URL prefixes cover the
	// URL, and zero otherwise.
	Credential string
	// Refused returns the error to report for one of the remote, and whether another try may succeed, with another secret.
	Refused func(err error) (report error, again bool)
}

// Secret authenticates to a remote. It prints as a placeholder.
type Secret struct {
	Username, Password, BearerToken string // over HTTP

	SSHKey, SSHKeyPassphrase, KnownHosts string // over SSH; known_hosts lines
}

// String hides the secret.
func (s Secret) String() string { return credential.Secret(s).String() }

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from encoders and from slog.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// SyncRequest is a request to [Repos].
type SyncRequest struct {
	Repo   events.RepoPath
	Remote Remote
	Ref    events.Ref   // zero for the remote's default branch
	Pin    string       // commit to publish for Ref, whatever Ref points to; "" for what Ref points to
	Depth  events.Depth // history to fetch
	LFS    LFS          // files in Git LFS to fetch the content of
	Fence  uint64       // fence of the lease on Repo

	// Submodules says whether the tree has the files of its submodules.
	Submodules events.Submodules
	// Submodule returns how to fetch a submodule from a URL. It is safe for concurrent use.
	Submodule func(ctx context.Context, url string) (SubmoduleRemote, error)
	// Base returns the commit to list changed files from, or "" for all files. published is the published commit of ref, or "".
	Base func(ref events.Ref, published string) string
	// Check returns the check of a ref's commit, or nil if it needs none. It is called once the ref is resolved; the commit is ""
	// if the remote names only a tag of it. Nil checks nothing.
	Check func(tip Tip, isDefault bool) Check
	// Refetch fetches everything again, because of an error of [events.ClassCorrupt] of Views.
	Refetch bool
	// Known, unless zero, is the remote's ref, or the pinned commit. If its commit is already published, the remote need not be contacted.
	Known Tip
	// Confirm returns nil once the lease is proven to be held. Call it right before publishing.
	Confirm func(context.Context) error
	// Progress, if not nil, is called with the progress of each phase.
	Progress func(events.Progress)
}

// Tip is a ref and its commit.
type Tip struct {
	Ref    events.Ref
	Commit string
}

// SyncResult is what is published after a sync.
type SyncResult struct {
	Tip
	Before    string        // the base that Files are listed from, or ""
	Path      string        // the published name, relative to the root
	Tree      string        // the immutable tree, relative to the root
	Files     []events.File // changed from Before to Commit
	Full      bool          // Before is no longer known, or its tree was damaged: Files lists the whole tree
	Truncated bool          // there are more files than Files lists
	Asked     bool          // the remote was contacted
	Forced    bool          // Commit is known not to descend from Before: history was rewritten
	Damaged   bool          // a tree of Before was damaged, so its readers may have read wrong files

	Missing []events.MissingSubmodule // submodules that could not be fetched
}

// RemoveRequest is a request to [Repos].
type RemoveRequest struct {
	Repo    events.RepoPath
	Ref     events.Ref // zero for the whole repository
	Remote  Remote     // remote to check; an empty URL selects the one that Repo is bound to
	Fence   uint64     // fence of the lease on Repo
	Force   bool       // skip the check with the remote
	Confirm func(context.Context) error
}

// MoveRequest is a request to [Repos].
type MoveRequest struct {
	From, To       events.RepoPath
	Remote         Remote // where the repository is now
	FormerSecret   Secret // for the remote that From is bound to
	Fence, ToFence uint64 // of the leases held on From and To
	Confirm        func(context.Context) error
}

// MoveResult is the result of a move.
type MoveResult struct {
	Moved bool   // false if there was nothing at From
	Path  string // the name published at To, relative to the root, or ""
	Tree  string // its tree, relative to the root
}

// Refs are the branches and tags of a remote.
type Refs struct {
	Default events.Ref        // the default branch; zero if unknown or missing
	Commits map[string]string // by full name
	Moved   string            // URL that the remote permanently redirects to; "" for none

	Invalid        []string // full names of branches and tags that cannot be an [events.Ref], in any order
	InvalidDefault string   // the default branch if its name cannot, or ""
}

// ListedRef is a ref that a pattern matches, as a poll has listed it.
type ListedRef struct {
	Commit  string
	Changed time.Time // when the commit changed; zero if it has not since the first poll
}

// Published is what readers see of a repository.
type Published struct {
	Commits map[events.Ref]string
	LFS     map[events.Ref]LFS       // LFS files of the trees; no entry for none
	Changed map[events.Ref]time.Time // when the commits were published
	Damaged map[events.Ref]bool      // refs that are not in Commits because their published tree is damaged
	Plain   events.Ref               // ref published under the plain name; zero if none
	Remote  string                   // remote that the repository is bound to
	Fetched bool                     // whether anything was ever fetched from it

	Submodules map[events.Ref]events.Submodules // setting that the trees were published with; no entry for off
	Incomplete map[events.Ref]bool              // trees to build again: without some submodule that may be available now, or because of a purge
	Missing    map[events.Ref][]MissingRemote   // submodules that are missing
}

// MissingRemote is the remote of a submodule that is missing.
type MissingRemote struct {
	URL        string // "" if none is known
	Credential string // see [SubmoduleRemote]
}

// Watch is an app's subscription to refs of a repository.
type Watch struct {
	App        string
	Repo       events.RepoPath // as the app spells it
	URL        string          // the remote
	Ref        Selector        // never nil
	MaxRefs    int             // how many of the refs that a pattern matches are kept; 0 for all
	Credential string          // the name of one, or ""
	Depth      events.Depth
	LFS        *LFSFilter        // files in Git LFS whose content the app wants; nil for none
	Submodules events.Submodules // whether it wants the files of submodules

	// SubmoduleCredentials are names of credentials for submodules. The one with the longest URL prefix that covers a submodule's URL
	// is used for it, instead of Credential.
	SubmoduleCredentials []string

	Views      ViewSet // parts of the tree whose changes have results of their own; nil for none
	ViewTrees  bool    // and are published as trees of their own
	Foreign    bool    // the URL comes from a webhook's payload
	Verify     Verify  // what it demands of signatures
	VerifyKeys string  // name of the credential with the trusted keys; "" if Verify is off
	NoRewind   bool    // it refuses rewritten history

	// FollowMoves asks to move the repository when its remote redirects permanently.
	FollowMoves bool
}

// Selector selects refs of a repository.
type Selector interface {
	IsDefault() bool              // it selects the remote's default branch
	Matches(ref events.Ref) bool  // it selects ref, a name or a commit, by name
	MatchesName(name string) bool // like Matches, of a full name that may not be valid
	Ref() (events.Ref, bool)      // the only ref that it selects, zero for the default branch; false if it is a pattern
	String() string               // ref or pattern as it is written, "" for the default branch
}

// Handlers handle changes, one method per type.
type Handlers struct {
	Repos       Repos
	States      States
	Credentials Credentials
	Watches     Watches      // optional; nil has no watches
	Keys        KeyStore     // optional; nil has no keys, so nothing is verified
	Views       Views        // optional; nil has no views
	Log         *slog.Logger // default slog.Default

	Hosts Hosts // limits the requests to hosts; optional
}

// Handle calls the handler for the job's type of change.
func (h *Handlers) Handle(ctx context.Context, job events.Job) (events.Outcome, error) {
	if h.Hosts != nil {
		defer h.Hosts.Leave(ctx, job.Change.Repo)
	}
	switch job.Change.Type {
	case events.ChangePushed:
		return h.Sync(ctx, job)
	case events.ChangeRemoved:
		return h.Remove(ctx, job)
	case events.ChangeMoved:
		return h.Move(ctx, job)
	case events.ChangeDue:
		return h.Poll(ctx, job)
	}
	return events.Outcome{}, events.Errorf(events.Malformed, events.ClassMalformed, "no handler for type %q", job.Change.Type)
}

// source is a remote and the name of its credential.
type source struct {
	url, credential string
	foreign         bool
}

func sourceOf(c events.Change) source { return source{c.URL, c.Credential, c.Foreign} }

// remote returns the remote that a job may contact.
func (h *Handlers) remote(ctx context.Context, job events.Job, from source) (Remote, error) {
	secret, err := h.Credentials.Resolve(ctx, from.credential, from.url)
	remote := Remote{URL: from.url, Secret: secret, Foreign: from.foreign, SecretFor: h.secretFor(from)}
	if h.Hosts != nil {
		remote.Gate = gate{h.Hosts, job, from.credential}
	}
	return remote, err
}

// afterRefusal makes a refused credential retryable if there may be a better one: tokens are rotated and revoked.
func (h *Handlers) afterRefusal(name string, secret Secret, err error) error {
	if _, ok := errors.AsType[submoduleError](err); ok {
		return err // the submodule's remote may have received another secret, or none
	}
	if events.ClassOf(err) != events.ClassAuth || !h.Credentials.Refused(name, secret) {
		return err
	}
	return events.Errorf(events.Retryable, events.ClassAuth, "%w; will retry with a new token", err)
}

// redisError wraps an error returned by Redis, so that the change is not blamed for it. It returns nil for nil.
func redisError(err error) error {
	if err == nil {
		return nil
	}
	return &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: err}
}
