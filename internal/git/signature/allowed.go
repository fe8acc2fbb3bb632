package signature

import (
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// signer is a line of allowed_signers.
type signer struct {
	principals  []string // patterns; a "!" excludes
	key         ssh.PublicKey
	authority   bool     // key signs certificates
	namespaces  []string // patterns; none for all
	after, last time.Time
}

// lines yields the lines of a text that are neither empty nor comments, by number.
func lines(text string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		n := 0
		for line := range strings.Lines(text) {
			n++
			line = strings.TrimSpace(line)
			if line != "" && line[0] != '#' && !yield(n, line) {
				return
			}
		}
	}
}

func parseAllowedSigners(text string) ([]signer, error) {
	var all []signer
	for n, line := range lines(text) {
		s, err := parseSigner(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, s)
	}
	if text != "" && len(all) == 0 {
		return nil, errors.New("there is no line with a key")
	}
	return all, nil
}

// parseSigner parses "principals [options] type key [comment]".
func parseSigner(line string) (s signer, err error) {
	principals, rest := cutField(line)
	if s.principals = strings.Split(strings.Trim(principals, `"`), ","); principals == "" ||
		slices.Contains(s.principals, "") {
		return s, errors.New("want principals, separated by commas")
	}
	word, after := cutField(rest)
	if !isKeyType(word) {
		if err := s.parseOptions(word); err != nil {
			return s, err
		}
		word, after = cutField(after)
	}
	encoded, _ := cutField(after)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !isKeyType(word) {
		return s, errors.New("want a key: type and base64, as in a .pub file")
	}
	if s.key, err = ssh.ParsePublicKey(raw); err != nil || s.key.Type() != word {
		return s, fmt.Errorf("not a valid %.40s key", word)
	}
	return s, nil
}

func isKeyType(word string) bool {
	return strings.HasPrefix(word, "ssh-") || strings.HasPrefix(word, "ecdsa-") || strings.HasPrefix(word, "sk-")
}

// cutField returns the first field, in which white space may be quoted, and what follows.
func cutField(line string) (field, rest string) {
	line = strings.TrimLeft(line, " \t")
	quoted := false
	for i, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case !quoted && (r == ' ' || r == '\t'):
			return line[:i], line[i:]
		}
	}
	return line, ""
}

func (s *signer) parseOptions(text string) error {
	for text != "" {
		name, value, rest, err := cutOption(text)
		if err != nil {
			return err
		}
		switch strings.ToLower(name) {
		case "cert-authority":
			s.authority = true
		case "namespaces":
			s.namespaces = strings.Split(value, ",")
		case "valid-after":
			s.after, err = parseTime(value)
		case "valid-before":
			s.last, err = parseTime(value)
		default:
			return fmt.Errorf("unknown option %.40q", name)
		}
		if err != nil {
			return fmt.Errorf("option %s: %w", name, err)
		}
		text = rest
	}
	if !s.after.IsZero() && !s.last.IsZero() && s.last.Before(s.after) {
		return errors.New("valid-before is before valid-after")
	}
	return nil
}

// cutOption cuts the first of options separated by commas: name or name="value".
func cutOption(text string) (name, value, rest string, err error) {
	end := strings.IndexAny(text, "=,")
	if end < 0 {
		return text, "", "", nil
	}
	name = text[:end]
	if text[end] == ',' {
		return name, "", text[end+1:], nil
	}
	quoted, ok := strings.CutPrefix(text[end+1:], `"`)
	value, rest, closed := strings.Cut(quoted, `"`)
	if !ok || !closed || rest != "" && rest[0] != ',' {
		return "", "", "", fmt.Errorf(`option %.40q: want name="value"`, name)
	}
	return name, value, strings.TrimPrefix(rest, ","), nil
}

// parseTime parses YYYYMMDD or YYYYMMDDHHMM[SS], in local time unless Z follows.
func parseTime(text string) (time.Time, error) {
	digits, utc := strings.CutSuffix(text, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(digits) == len(layout) {
			return time.ParseInLocation(layout, digits, zone)
		}
	}
	return time.Time{}, errors.New("want YYYYMMDD or YYYYMMDDHHMM[SS], with a Z for UTC")
}

// admits returns the signer's name if the line admits a key at a time. If the line is about the key but does
// not admit it, it returns why.
func (s signer) admits(key ssh.PublicKey, at time.Time) (by, problem string) {
	cert, isCert := key.(*ssh.Certificate)
	switch {
	case s.authority && isCert && equalKeys(s.key, cert.SignatureKey):
		if by, problem = s.principalOf(cert, at); by == "" {
			return "", problem
		}
	case !s.authority && equalKeys(s.key, key):
		i := slices.IndexFunc(s.principals, func(p string) bool { return p[0] != '!' && matchesList(p, s.principals) })
		if i < 0 {
			return "", "has no principal"
		}
		by = s.principals[i]
	default:
		return "", ""
	}
	switch {
	case len(s.namespaces) > 0 && !matchesList(namespace, s.namespaces):
		return "", "may not sign for the namespace git"
	case !s.after.IsZero() && at.Before(s.after):
		return "", "was not valid yet at the date of the signed object"
	case !s.last.IsZero() && at.After(s.last):
		return "", "was no longer valid at the date of the signed object"
	}
	return by, ""
}

// principalOf returns the first principal of a certificate that the line matches.
func (s signer) principalOf(cert *ssh.Certificate, at time.Time) (by, problem string) {
	i := slices.IndexFunc(cert.ValidPrincipals, func(p string) bool { return matchesList(p, s.principals) })
	if i < 0 {
		return "", "has a certificate without a matching principal"
	}
	if cert.CertType != ssh.UserCert {
		return "", "has a certificate of a host"
	}
	checker := ssh.CertChecker{
		Clock: func() time.Time { return at },
		// They restrict logins.
		SupportedCriticalOptions: []string{"force-command", "source-address", "verify-required"},
	}
	if err := checker.CheckCert(cert.ValidPrincipals[i], cert); err != nil {
		return "", "has a certificate that was not valid at the date of the signed object"
	}
	return cert.ValidPrincipals[i], ""
}

func equalKeys(a, b ssh.PublicKey) bool { return string(a.Marshal()) == string(b.Marshal()) }

// matchesList reports whether a pattern matches text and none with a "!" does, as OpenSSH's match_pattern_list.
func matchesList(text string, patterns []string) bool {
	found := false
	for _, p := range patterns {
		pattern, negated := strings.CutPrefix(p, "!")
		if !matches(text, pattern) {
			continue
		}
		if negated {
			return false
		}
		found = true
	}
	return found
}

// matches reports whether a pattern, in which * and ? are wildcards, matches text.
func matches(text, pattern string) bool {
	star, from := -1, 0 // position after the last star, and where its match ends
	i, j := 0, 0
	for i < len(text) {
		switch {
		case j < len(pattern) && pattern[j] == '*':
			j++
			star, from = j, i
		case j < len(pattern) && (pattern[j] == '?' || pattern[j] == text[i]):
			i, j = i+1, j+1
		case star >= 0:
			from++
			i, j = from, star
		default:
			return false
		}
	}
	return strings.Trim(pattern[j:], "*") == ""
}
