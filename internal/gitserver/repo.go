package gitserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Main is the default branch of repositories created by [Server.Create].
const Main = "main"

// CreateEmpty creates a bare repository without commits, with the default branch [Main]. Its object format is that of
// GIT_DEFAULT_HASH, which defaults to SHA-1.
func (s *Server) CreateEmpty(ctx context.Context, repo string) error { return s.createEmpty(ctx, repo) }

// CreateEmptyAs is CreateEmpty with an object format, "sha1" or "sha256".
func (s *Server) CreateEmptyAs(ctx context.Context, format, repo string) error {
	return s.createEmpty(ctx, repo, "--object-format="+format)
}

// CreateAs is [Server.Create] with an object format, "sha1" or "sha256".
func (s *Server) CreateAs(ctx context.Context, format, repo string, files map[string]string) (string, error) {
	if err := s.CreateEmptyAs(ctx, format, repo); err != nil {
		return "", err
	}
	return s.Commit(ctx, repo, Main, Edit{Write: files})
}

func (s *Server) createEmpty(ctx context.Context, repo string, options ...string) error {
	dir := s.Dir(repo)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", repo, err)
	}
	init := append([]string{"init", "--quiet", "--bare", "--initial-branch=" + Main}, options...)
	if _, err := Git(ctx, dir, "", init...); err != nil {
		return fmt.Errorf("create %s: %w", repo, err)
	}
	return nil
}

// Create creates a bare repository with one commit of these files on [Main], and returns the commit.
func (s *Server) Create(ctx context.Context, repo string, files map[string]string) (string, error) {
	if err := s.CreateEmpty(ctx, repo); err != nil {
		return "", err
	}
	return s.Commit(ctx, repo, Main, Edit{Write: files})
}

// Delete removes a repository. Requests for it then get status 404.
func (s *Server) Delete(repo string) error { return os.RemoveAll(s.Dir(repo)) }

// SetHead sets the default branch.
func (s *Server) SetHead(repo, branch string) error {
	head := "ref: refs/heads/" + branch + "\n"
	return os.WriteFile(filepath.Join(s.Dir(repo), "HEAD"), []byte(head), 0o644)
}

// SetRef sets a ref ("refs/heads/main") to a commit, by force if necessary.
func (s *Server) SetRef(ctx context.Context, repo, ref, commit string) error {
	_, err := s.Git(ctx, repo, "", "update-ref", ref, commit)
	return err
}

// DeleteRef removes a ref.
func (s *Server) DeleteRef(ctx context.Context, repo, ref string) error {
	_, err := s.Git(ctx, repo, "", "update-ref", "-d", ref)
	return err
}

// ManyRefs replaces the packed refs by n branches "many/000001" and so on at a commit. Other refs that are
// not packed remain.
func (s *Server) ManyRefs(repo, commit string, n int) error {
	var packed strings.Builder
	packed.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range n {
		fmt.Fprintf(&packed, "%s refs/heads/many/%06d\n", commit, i+1)
	}
	return os.WriteFile(filepath.Join(s.Dir(repo), "packed-refs"), []byte(packed.String()), 0o644)
}

// Tag creates an annotated tag of a commit.
func (s *Server) Tag(ctx context.Context, repo, name, commit string) error {
	_, err := s.Git(ctx, repo, "", "tag", "-f", "-a", "-m", "Tag "+name, name, commit)
	return err
}

// Head returns the commit of a ref ("refs/heads/main"), or "" if there is none.
func (s *Server) Head(repo, ref string) string {
	if content, err := os.ReadFile(filepath.Join(s.Dir(repo), filepath.FromSlash(ref))); err == nil {
		return strings.TrimSpace(string(content))
	}
	packed, err := os.ReadFile(filepath.Join(s.Dir(repo), "packed-refs"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(packed)) {
		if hash, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == ref {
			return hash
		}
	}
	return ""
}
