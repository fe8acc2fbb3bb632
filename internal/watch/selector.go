package watch

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"lockstep/events"
)

// Selector selects refs: one ref, or all refs whose full names match a pattern such as "refs/tags/v*", in which * does
// not match a slash. The zero Selector selects the remote's default branch.
type Selector struct{ text string }

var errBadSelector = errors.New(`want a branch, a full ref, or a pattern such as "refs/tags/v*"`)

// ParseSelector parses a ref as [events.ParseRef] does, or a pattern below refs/heads/ or refs/tags/.
func ParseSelector(s string) (Selector, error) {
	if !strings.ContainsAny(s, "*?[") {
		ref, err := events.ParseRef(s)
		return Selector{ref.String()}, err
	}
	if _, err := path.Match(s, ""); err != nil || len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}) {
		return Selector{}, errBadSelector
	}
	if !strings.HasPrefix(s, "refs/heads/") && !strings.HasPrefix(s, "refs/tags/") {
		return Selector{}, errBadSelector
	}
	return Selector{s}, nil
}

// IsDefault reports whether s selects the remote's default branch.
func (s Selector) IsDefault() bool { return s.text == "" }

// IsPattern reports whether s may select several refs.
func (s Selector) IsPattern() bool { return strings.ContainsAny(s.text, "*?[") }

// Ref returns the ref that s selects, zero for the default branch. It returns false if s is a pattern.
func (s Selector) Ref() (events.Ref, bool) {
	if s.IsPattern() {
		return events.Ref{}, false
	}
	ref, err := events.ParseRef(s.text)
	return ref, err == nil
}

// Matches reports whether s selects ref by name. The default branch has no name, so it matches nothing. Of
// the refs that a pattern matches, a watch keeps at most [Watch.MaxRefs].
func (s Selector) Matches(ref events.Ref) bool { return s.MatchesName(ref.String()) }

// MatchesName is like Matches, of a full name that may not be valid.
func (s Selector) MatchesName(name string) bool {
	if s.IsPattern() {
		ok, _ := path.Match(s.text, name)
		return ok
	}
	return s.text != "" && s.text == name
}

// String returns the text that [ParseSelector] parses.
func (s Selector) String() string { return s.text }

// IsZero is the same as IsDefault.
func (s Selector) IsZero() bool { return s.text == "" }

// MarshalText implements [encoding.TextMarshaler].
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Selector) UnmarshalText(text []byte) (err error) {
	if *s, err = ParseSelector(string(text)); err != nil {
		return fmt.Errorf("ref: %w", err)
	}
	return nil
}

// RemoteKey returns the key that a remote is indexed by: the host and path of [events.CanonicalRemote] in lower case,
// without the parts in which URLs of one repository may differ. It omits the port, because SSH and HTTP use different
// ones, and the "scm/" that Bitbucket Data Center adds to HTTP paths only. No forge has two repositories whose names
// differ only in case. Remotes that are [SameRemote] have the same key; two forges behind different ports of a host
// may share one.
func RemoteKey(remote string) string {
	host, path, _ := strings.Cut(strings.ToLower(events.CanonicalRemote(remote)), "/")
	if colon := strings.LastIndexByte(host, ':'); colon > strings.LastIndexByte(host, ']') {
		host = host[:colon]
	}
	return host + "/" + strings.TrimPrefix(path, "scm/")
}

// SameRemote reports whether two URLs name the same repository, by host and path. It compares ports if both URLs use
// SSH or both use HTTP, because two ports may belong to two forges.
func SameRemote(a, b string) bool {
	switch {
	case a == b:
		return true
	case isSSH(a) != isSSH(b):
		return RemoteKey(a) == RemoteKey(b)
	}
	return strings.EqualFold(events.CanonicalRemote(a), events.CanonicalRemote(b))
}

func isSSH(remote string) bool { return strings.HasPrefix(strings.ToLower(remote), "ssh:") }
