package credential

import (
	"lockstep/events"
	"lockstep/internal/git/signature"
)

// maxKeys is the maximum size of a file of public keys, in bytes.
const maxKeys = 1 << 20

// VerificationKeys returns the files openpgpKeys, allowedSigners and revokedKeys, all of the same version.
// They are public: the credential's URL prefixes do not matter. Errors are permanent, except if a file cannot
// be read.
func (s *Store) VerificationKeys(name string) (signature.Files, error) {
	if !namePattern.MatchString(name) {
		return signature.Files{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential name %.110q: want at most 100 letters, digits, dots, underscores or hyphens", name)
	}
	texts, err := s.read(name, true)
	if err != nil {
		return signature.Files{}, err
	}
	keys := signature.Files{
		OpenPGPKeys: texts["openpgpKeys"], AllowedSigners: texts["allowedSigners"], RevokedKeys: texts["revokedKeys"],
	}
	if keys.OpenPGPKeys == "" && keys.AllowedSigners == "" {
		return signature.Files{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q has no keys to verify signatures with; add %s or %s", name, s.where(name, "allowedSigners"),
			s.where(name, "openpgpKeys"))
	}
	return keys, nil
}
