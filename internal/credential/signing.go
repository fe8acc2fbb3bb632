package credential

import (
	"strings"

	"lockstep/events"
)

// SigningSecrets returns the secrets that sign what is posted to url, the newest first: signingSecret, and
// previousSigningSecret if there is one. The credential's URL prefixes bound them as they bound tokens: who
// can name a credential must not be able to have it sign for a server of their own. Errors are permanent,
// but for a file that cannot be read.
func (s *Store) SigningSecrets(name, url string) ([]string, error) {
	if !namePattern.MatchString(name) {
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential name %.110q: want letters, digits and ._-, at most 100", name)
	}
	texts := map[string]string{}
	for _, file := range []string{"signingSecret", "previousSigningSecret", "urls"} {
		text, err := s.read(name, file)
		if err != nil {
			return nil, events.Errorf(events.Retryable, events.ClassConfig, "credential %s: %w", name, err)
		}
		texts[file] = text
	}
	switch {
	case texts["signingSecret"] == "":
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q has no signing secret here: add %s or %s", name, s.where(name, "signingSecret"), variable(name, "signingSecret"))
	case !allowed(strings.Fields(texts["urls"]), url):
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q may not sign for this URL: list its prefix in %s or %s", name, s.where(name, "urls"), variable(name, "urls"))
	case texts["previousSigningSecret"] == "":
		return []string{texts["signingSecret"]}, nil
	}
	return []string{texts["signingSecret"], texts["previousSigningSecret"]}, nil
}
