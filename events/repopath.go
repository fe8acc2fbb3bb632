package events

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// ErrBadRepoPath is wrapped by every error of [ParseRepoPath] and [RepoPathFromURL].
var ErrBadRepoPath = errors.New("not a repository path")

const (
	maxRepoPath    = 512 // bytes
	maxRepoSegment = 100 // bytes; leaves room for "@ref" within the 255 bytes of a file name
	maxRepoDepth   = 20  // segments; GitLab's limit on nested groups
)

// RepoPath names a repository, "owner/name" or deeper ("group/sub/name"). Only [ParseRepoPath] and
// [RepoPathFromURL] return one, so a RepoPath is always safe as a folder below the root and as part of a
// Redis key. Paths that differ only in the case of ASCII letters name the same repository: compare with
// [RepoPath.Equal] or [RepoPath.Key], not with ==.
//
// The zero value names no repository.
type RepoPath struct{ spelled, folded string }

// ParseRepoPath parses "owner/name" or a deeper path of 2 to 20 segments of at most 100 bytes each. It rejects anything
// that a file system, a shell or Git could interpret: empty, "." and ".." segments, a leading "-", a ".git" suffix, the
// reserved name ".lockstep", and every byte except ASCII letters, digits and "._-~+". The error wraps [ErrBadRepoPath].
func ParseRepoPath(s string) (RepoPath, error) {
	if err := checkRepoPath(s); err != nil {
		return RepoPath{}, fmt.Errorf("%w: %s: %w", ErrBadRepoPath, quote(s), err)
	}
	return RepoPath{spelled: s, folded: strings.ToLower(s)}, nil
}

// checkRepoPath returns an error that does not repeat s.
func checkRepoPath(s string) error {
	if len(s) > maxRepoPath {
		return fmt.Errorf("longer than %d bytes", maxRepoPath)
	}
	segments := strings.Split(s, "/")
	if len(segments) < 2 || len(segments) > maxRepoDepth {
		return fmt.Errorf("%d segments, want 2 (owner/name) to %d", len(segments), maxRepoDepth)
	}
	for _, seg := range segments {
		if err := checkSegment(seg); err != nil {
			return err
		}
	}
	return nil
}

func checkSegment(seg string) error {
	if len(seg) > maxRepoSegment {
		return fmt.Errorf("a segment is longer than %d bytes", maxRepoSegment)
	}
	for i := range len(seg) {
		if !isSegmentByte(seg[i]) {
			return fmt.Errorf("byte %q is not allowed; use letters, digits and ._-~+", seg[i])
		}
	}
	folded := strings.ToLower(seg)
	switch {
	case seg == "":
		return errors.New("a segment is empty")
	case seg == "." || seg == "..":
		return errors.New("a segment \".\" or \"..\" would leave the root")
	case seg[0] == '-':
		return errors.New("a segment begins with a dash")
	case folded == ".lockstep":
		return errors.New("the name .lockstep is reserved")
	case strings.HasSuffix(folded, ".git"):
		return errors.New("a segment ends in .git; leave the suffix out")
	}
	return nil
}

func isSegmentByte(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		return true
	}
	return strings.IndexByte("._-~+", b) >= 0
}

// RepoPathFromURL derives the repository path from a remote's URL: "https://host/owner/name.git" yields
// "owner/name". It rejects an encoded slash, which the remote might not treat as a separator. The error never
// repeats the URL, which may contain a password.
func RepoPathFromURL(remote string) (RepoPath, error) {
	u, err := url.Parse(remote)
	if err != nil {
		return RepoPath{}, fmt.Errorf("%w: the URL does not parse", ErrBadRepoPath)
	}
	if strings.Contains(strings.ToLower(u.EscapedPath()), "%2f") {
		return RepoPath{}, fmt.Errorf("%w: the URL's path has an encoded slash", ErrBadRepoPath)
	}
	path := strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git")
	if err := checkRepoPath(path); err != nil {
		return RepoPath{}, fmt.Errorf("%w: the URL's path: %w", ErrBadRepoPath, err)
	}
	return RepoPath{spelled: path, folded: strings.ToLower(path)}, nil
}

// String returns the path as it was spelled.
func (p RepoPath) String() string { return p.spelled }

// Key returns the identity of the path, the same for every spelling. It is used in Redis keys.
func (p RepoPath) Key() string { return p.folded }

// IsZero reports whether p names no repository.
func (p RepoPath) IsZero() bool { return p.folded == "" }

// Equal reports whether p and q name the same repository.
func (p RepoPath) Equal(q RepoPath) bool { return p.folded == q.folded }

// Contains reports whether q lies below p, as acme/widgets/docs lies below acme/widgets. Two such
// repositories cannot share a volume, because their files would end up in the same folder.
func (p RepoPath) Contains(q RepoPath) bool {
	return strings.HasPrefix(q.folded, p.folded+"/")
}

// MarshalText returns the path as it was spelled.
func (p RepoPath) MarshalText() ([]byte, error) { return []byte(p.spelled), nil }

// UnmarshalText parses as [ParseRepoPath] does; empty text gives the zero value.
func (p *RepoPath) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*p = RepoPath{}
		return nil
	}
	parsed, err := ParseRepoPath(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
