package handlers

import (
	"context"
	"errors"
	"log/slog"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Handlers handle changes, one method per type.
type Handlers struct {
	Volume      *volume.Volume
	States      *state.Store
	Credentials *credential.Store
	Watches     *watch.Registry
	Extensions  []ext.Extension // optional parts of a sync
	Log         *slog.Logger    // default slog.Default
}

// Handle calls the handler for the job's type of change.
func (h *Handlers) Handle(ctx context.Context, job Job) (Outcome, error) {
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
	return Outcome{}, events.Errorf(events.Malformed, events.ClassConfig, "no handler for type %q", job.Change.Type)
}

// source is a remote and the name of its credential.
type source struct {
	url, credential string
	foreign         bool
}

func sourceOf(c events.Change) source { return source{c.URL, c.Credential, c.Foreign} }

// resolve returns the secret of a credential for a remote.
func (h *Handlers) resolve(ctx context.Context, name, remote string) (wire.Auth, error) {
	return h.Credentials.Resolve(ctx, name, h.Volume.Asked(remote))
}

// afterRefusal makes a refused credential retryable if there may be a better one: tokens are rotated and revoked.
func (h *Handlers) afterRefusal(name string, auth wire.Auth, err error) error {
	// Another token of the same app does not see more repositories.
	isUsed := events.ScopeOf(err) == events.ScopeCredential || errors.Is(err, volume.ErrLFS)
	isRefused := isUsed && events.ClassOf(err) == events.ClassAuth
	if !isRefused || !h.Credentials.Refused(name, auth) {
		return err
	}
	renewed := events.Errorf(events.Retryable, events.ClassAuth, "%w; will retry with a new token", err)
	return events.WithScope(renewed, events.ScopeOf(err))
}

// redisError wraps an error returned by Redis, so that the change is not blamed for it. It returns nil for nil.
func redisError(err error) error {
	if err == nil {
		return nil
	}
	return &events.Error{Disposition: events.Contention, Scope: events.ScopeUs, Class: events.ClassInternal, Err: err}
}
