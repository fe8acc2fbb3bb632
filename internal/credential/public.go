package credential

// maxKeys is the maximum size of a file of public keys, in bytes.
const maxKeys = 1 << 20

// PublicKeys returns the texts of a credential's files of public keys, all of the same version; "" for one that does
// not exist. They are public: the credential's URL prefixes do not matter. Errors are permanent, except if a file
// cannot be read.
func (s *Store) PublicKeys(name string) (map[string]string, error) {
	return s.read(name, true)
}
