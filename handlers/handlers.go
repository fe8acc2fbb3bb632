// Package handlers does what a change asks for, one file per type of change. A handler runs under
// the repository's lease and inside a work slot; it answers with a result and the state to remember,
// which the router settles in one step with the event, or with an error that says what it means.
package handlers

import (
	"context"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Repos are the clones on the volume; a [volume.Volume] is.
type Repos interface {
	Sync(ctx context.Context, req volume.SyncRequest) (volume.SyncResult, error)
	Remove(ctx context.Context, req volume.RemoveRequest) (bool, error)
	RemoveRef(ctx context.Context, req volume.RemoveRefRequest) (bool, error)
	Move(ctx context.Context, req volume.MoveRequest) (volume.MoveResult, error)
	ListRefs(ctx context.Context, req volume.ListRefsRequest) (wire.Refs, error)
	Published(repo events.RepoPath) (volume.Published, bool, error)
}

// States is what Redis remembers of repositories; a [state.Store] is.
type States interface {
	Load(ctx context.Context, repo events.RepoPath) (state.Repo, error)
	SetLooks(ctx context.Context, repo events.RepoPath, ref events.Ref, entry string, looks int) error
}

// Credentials resolve a credential's name for one remote; a [credential.Store] does.
type Credentials interface {
	Resolve(ctx context.Context, name, remote string) (credential.Secret, error)
	Refused(name string, secret credential.Secret) bool
}

// Handlers are the handlers, with what they share.
type Handlers struct {
	Repos       Repos
	States      States
	Credentials Credentials
	Watches     Watches
}

// Handle leads a job to the handler of its type.
func (h *Handlers) Handle(ctx context.Context, job events.Job) (events.Outcome, error) {
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

// afterRefusal makes a refused credential worth another try, if there may be a better one for the name by
// then: a token that was issued for a while can be revoked before its time.
func (h *Handlers) afterRefusal(name string, secret credential.Secret, err error) error {
	if events.ClassOf(err) != events.ClassAuth || !h.Credentials.Refused(name, secret) {
		return err
	}
	return events.Errorf(events.Retryable, events.ClassAuth, "%w; the next try is with a new token", err)
}
