package events

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrBadRef is wrapped by every error of [ParseRef].
var ErrBadRef = errors.New("not a Git ref")

const (
	maxRefSuffix = 150  // bytes, so that "name@ref" stays a file name
	maxRef       = 1000 // bytes
	maxRefPart   = 250  // bytes between two slashes, so that Git can lock the ref's file
)

// Ref is a full Git ref name such as "refs/heads/main", or a commit by its hash. The zero value is the remote's default
// branch. Only [ParseRef] returns other values.
type Ref struct{ name string }

// DetachedHead is the ref of results and trees of a remote whose HEAD is detached: it points to a commit, not
// to a branch. It stands for the default branch, so the tree has the plain name. No remote has a ref of this
// name.
var DetachedHead = Ref{"refs/lockstep/HEAD"}

// ParseRef parses a ref name by the rules of git-check-ref-format. A name without the prefix "refs/" is a
// branch; "" and "HEAD" are the remote's default branch; 40 or 64 hexadecimal digits are a commit, as for git
// fetch. Beyond Git's rules it rejects a name directly below "refs/", a name that is not UTF-8, because JSON
// cannot represent it, and a name of more than 1,000 bytes, or more than 250 between two slashes.
func ParseRef(s string) (Ref, error) {
	if s == "" || s == "HEAD" {
		return Ref{}, nil
	}
	if isCommit(s) {
		if strings.Trim(s, "0") == "" {
			return Ref{}, fmt.Errorf("%w: a hash of zeros is no commit", ErrBadRef)
		}
		return Ref{strings.ToLower(s)}, nil
	}
	name := s
	if !strings.HasPrefix(name, "refs/") {
		name = "refs/heads/" + name
	}
	if err := checkRefName(name); err != nil {
		return Ref{}, fmt.Errorf("%w: %s: %w", ErrBadRef, quote(s), err)
	}
	return Ref{name}, nil
}

func checkRefName(name string) error {
	if strings.Count(name, "/") < 2 {
		return errors.New("want refs/<kind>/<name>")
	}
	if !utf8.ValidString(name) {
		return errors.New("not UTF-8")
	}
	if len(name) > maxRef {
		return fmt.Errorf("longer than %d bytes", maxRef)
	}
	if strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.HasSuffix(name, ".") {
		return errors.New("has \"..\", \"@{\" or a trailing dot")
	}
	for i := range len(name) {
		if b := name[i]; b <= ' ' || b == 0x7f || strings.IndexByte("~^:?*[\\", b) >= 0 {
			return fmt.Errorf("byte %q is not allowed", b)
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return errors.New("a part is empty, begins with a dot or ends in .lock")
		}
		if len(part) > maxRefPart {
			return fmt.Errorf("a part is longer than %d bytes", maxRefPart)
		}
	}
	return nil
}

// isCommit reports whether s is the hash of a commit, in upper or lower case.
func isCommit(s string) bool { return isHash(strings.ToLower(s)) }

// String returns the full name, the hash of a commit in lower case, or "" for the remote's default branch.
func (r Ref) String() string { return r.name }

// IsZero reports whether r stands for the remote's default branch.
func (r Ref) IsZero() bool { return r.name == "" }

// IsTag reports whether r is a tag.
func (r Ref) IsTag() bool { return strings.HasPrefix(r.name, "refs/tags/") }

// Commit returns the commit that r is, in lower case, or "" if r is a name or the default branch.
func (r Ref) Commit() string {
	if isCommit(r.name) {
		return r.name
	}
	return ""
}

// Suffix returns the part after "@" in the name of this ref's folder: the short name of a branch, a commit, or the full
// name of any other ref, with "/" as %2F and "%" as %25. It is unique for each ref: a branch whose short name could be
// another ref has its full name. If that is longer than 150 bytes, its end is "%." and 32 digits of the name's hash.
func (r Ref) Suffix() string {
	name := r.name
	if short, ok := strings.CutPrefix(name, "refs/heads/"); ok && !strings.HasPrefix(short, "refs/") && !isCommit(short) {
		name = short
	}
	escaped := escapeRef.Replace(name)
	if len(escaped) <= maxRefSuffix {
		return escaped
	}
	sum := sha256.Sum256([]byte(r.name))
	end := "%." + hex.EncodeToString(sum[:16])
	begin := strings.ToValidUTF8(escaped[:maxRefSuffix-len(end)], "")
	if cut := strings.LastIndexByte(begin, '%'); cut >= len(begin)-2 { // within %2F or %25
		begin = begin[:cut]
	}
	return begin + end
}

var (
	escapeRef   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescapeRef = strings.NewReplacer("%2F", "/", "%25", "%")
)

// ParseSuffix parses a [Ref.Suffix] as [ParseRef] does. It also accepts one that would be cut, but is whole; what is cut
// parses as another ref.
func ParseSuffix(suffix string) (Ref, error) { return ParseRef(unescapeRef.Replace(suffix)) }

// MarshalText returns the full name.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.name), nil }

// UnmarshalText parses as [ParseRef] does.
func (r *Ref) UnmarshalText(text []byte) error {
	parsed, err := ParseRef(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}
