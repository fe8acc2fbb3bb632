package credential

import (
	"strings"

	"lockstep/events"
)

// SigningSecrets returns the secrets that sign posts to url, the newest first: signingSecret and, if set,
// previousSigningSecret. Like tokens, they may only be used for the credential's URL prefixes: otherwise
// anybody who can name a credential could have it sign for another server. Errors are permanent, except if a
// file cannot be read.
func (s *Store) SigningSecrets(name, url string) ([]string, error) {
	texts, err := s.read(name, false)
	if err != nil {
		return nil, err
	}
	switch {
	case texts["signingSecret"] == "":
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q has no signing secret; add %s or %s", name, s.Where(name, "signingSecret"),
			variable(name, "signingSecret"))
	case Covers(strings.Fields(texts["urls"]), url) == 0:
		return nil, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q may not sign for this URL; add its prefix to %s or %s", name, s.Where(name, "urls"),
			variable(name, "urls"))
	case texts["previousSigningSecret"] == "":
		return []string{texts["signingSecret"]}, nil
	}
	return []string{texts["signingSecret"], texts["previousSigningSecret"]}, nil
}
