package gitserver

import (
	"fmt"
	"os"
	"path/filepath"
)

// Rename gives a repository another name, as a forge does that has one renamed or transferred. Clients of the old name
// are told 404 from then on; see [Server.Alias].
func (s *Server) Rename(repo, to string) error {
	if err := os.MkdirAll(filepath.Dir(s.Dir(to)), 0o755); err != nil {
		return fmt.Errorf("rename %s: %w", repo, err)
	}
	return os.Rename(s.Dir(repo), s.Dir(to))
}

// Alias has a repository be served by another name as well, as forges do by the old one.
func (s *Server) Alias(alias, repo string) error {
	if err := os.MkdirAll(filepath.Dir(s.Dir(alias)), 0o755); err != nil {
		return fmt.Errorf("alias %s: %w", repo, err)
	}
	return os.Symlink(s.Dir(repo), s.Dir(alias))
}
