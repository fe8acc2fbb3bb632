package gitserver

import (
	"fmt"
	"os"
	"path/filepath"
)

// Rename renames a repository, like a rename or transfer on a forge. Requests for the old name then get status 404;
// see [Server.Alias].
func (s *Server) Rename(repo, to string) error {
	if err := os.MkdirAll(filepath.Dir(s.Dir(to)), 0o755); err != nil {
		return fmt.Errorf("rename %s: %w", repo, err)
	}
	return os.Rename(s.Dir(repo), s.Dir(to))
}

// Alias also serves a repository under another name, as forges do with the old name.
func (s *Server) Alias(alias, repo string) error {
	if err := os.MkdirAll(filepath.Dir(s.Dir(alias)), 0o755); err != nil {
		return fmt.Errorf("alias %s: %w", repo, err)
	}
	return os.Symlink(s.Dir(repo), s.Dir(alias))
}
