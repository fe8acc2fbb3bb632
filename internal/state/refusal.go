package state

import (
	"context"
	"time"

	"lockstep/events"
)

// An app that was given something keeps it until the refusal of its credential is confirmed: forges refuse for a while
// when they are overloaded or misconfigured. The record of a refusal is the [Trouble] of the app's credential. It is
// confirmed when the refusals in a row span confirmedAfter. Any success with the credential removes the record.
const confirmedAfter = 6 * time.Minute

// refusalDelays are the times from a refusal to the next attempt, by the refusals in a row. The last one repeats.
// Together they are longer than confirmedAfter.
var refusalDelays = [...]time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}

// Refuse returns t, the refusal of an app's credential, as the last in a row, with the next attempt. It has none if
// the refusal is confirmed, or if the app was given nothing. A refusal before the attempt that is due, such as that of
// another ref, does not count.
func (r Repo) Refuse(t Trouble) Trouble {
	before := r.troubles().All[t.key()]
	t = r.InARow(t)
	if !r.HasGiven(t.App) || t.At.Sub(t.Since) >= confirmedAfter {
		return t
	}
	next := t.At.Add(refusalDelays[min(t.Failures, len(refusalDelays))-1])
	if before.Until != nil && before.Until.After(t.At) {
		t.Failures, next = before.Failures, *before.Until
	}
	t.Next, t.Until = &next, &next
	return t
}

// IsRefused reports whether the remote has refused a credential of an app, or hidden the repository from it, and not
// accepted it since. The app is given nothing new until then.
func (r Repo) IsRefused(app, credential string) bool {
	refused, _ := r.troubles().refusal(app, credential)
	return refused
}

// Denied reports whether such a refusal is confirmed, so that the app reads nothing with the credential.
func (r Repo) Denied(app, credential string) bool {
	_, confirmed := r.troubles().refusal(app, credential)
	return confirmed
}

func (found troubles) refusal(app, credential string) (refused, confirmed bool) {
	t, refused := found.All[Trouble{Scope: events.ScopeCredential, App: app, Credential: credential}.key()]
	return refused, refused && t.Next == nil
}

// DeniedOf returns for each pair of an app and a credential what [Repo.Denied] does. It reads only what it needs.
func (s *Store) DeniedOf(ctx context.Context, repo events.RepoPath, pairs [][2]string) ([]bool, error) {
	denied := make([]bool, len(pairs))
	if len(pairs) == 0 {
		return denied, nil
	}
	known, err := s.LoadTroubles(ctx, repo)
	if err != nil {
		return nil, err
	}
	found := known.troubles()
	for i, pair := range pairs {
		_, denied[i] = found.refusal(pair[0], pair[1])
	}
	return denied, nil
}
