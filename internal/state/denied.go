package state

import (
	"context"
	"fmt"
	"strings"

	"lockstep/events"
)

// DeniedField returns the name of the field that records that the remote refuses a credential of an app. The names of apps and
// credentials contain no colon.
func DeniedField(app, credential string) string { return "denied:" + app + ":" + credential }

// Denied returns the class with which the remote last refused the credential of an app, or "" if it has accepted it since.
func (r Repo) Denied(app, credential string) events.Class {
	return events.Class(r.fields[DeniedField(app, credential)])
}

// HasGiven reports whether anything of the current clone was delivered to app.
func (r Repo) HasGiven(app string) bool {
	for name := range r.fields {
		if rest, ok := strings.CutPrefix(name, "given:"); ok {
			if _, to, _ := strings.Cut(rest, ":"); to == app { // a ref contains no colon
				return true
			}
		}
	}
	return false
}

// Deny records that the remote refuses a credential of an app. The caller must hold the repository's lease.
func (s *Store) Deny(ctx context.Context, repo events.RepoPath, app, credential string, class events.Class) error {
	if err := s.redis.HSet(ctx, s.namespace.Repo(repo), DeniedField(app, credential), string(class)).Err(); err != nil {
		return fmt.Errorf("store in the state of %s that %s is refused: %w", repo, app, err)
	}
	return nil
}

// DeniedOf returns for each pair of an app and a credential whether the remote refuses that credential, as [Repo.Denied] does. It reads
// these fields only.
func (s *Store) DeniedOf(ctx context.Context, repo events.RepoPath, pairs [][2]string) ([]bool, error) {
	denied := make([]bool, len(pairs))
	if len(pairs) == 0 {
		return denied, nil
	}
	names := make([]string, len(pairs))
	for i, pair := range pairs {
		names[i] = DeniedField(pair[0], pair[1])
	}
	values, err := s.redis.HMGet(ctx, s.namespace.Repo(repo), names...).Result()
	if err != nil {
		return nil, fmt.Errorf("load the refused credentials of %s: %w", repo, err)
	}
	for i, value := range values {
		text, _ := value.(string)
		denied[i] = text != ""
	}
	return denied, nil
}
