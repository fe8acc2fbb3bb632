package egress

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Rewrites are the prefixes of URLs that stand for others: a remote whose URL is written with the first of a pair is
// asked at the URL with the second, as with url.<base>.insteadOf of git.
type Rewrites [][2]string

// ParseRewrites parses pairs of URL prefixes such as https://github.com/=https://mirror.example.org/github/. The result
// of a rewrite is never rewritten again.
func ParseRewrites(items []string) (all Rewrites, err error) {
	for i, item := range items {
		from, to, _ := strings.Cut(item, "=")
		for _, prefix := range []string{from, to} {
			if err := errors.Join(CheckPrefix(prefix), checkEnd(prefix)); err != nil {
				return nil, fmt.Errorf("pair %d: %w", i+1, err) // which may have a password
			}
		}
		all = append(all, [2]string{from, to})
	}
	for _, one := range all {
		for _, other := range all {
			if hasPrefix(one[1], other[0]) || hasPrefix(other[0], one[1]) {
				return nil, fmt.Errorf("the result of %s=%s would be rewritten by %s=%s; give the final URL",
					one[0], one[1], other[0], other[1])
			}
		}
	}
	return all, nil
}

var emptyPort = regexp.MustCompile(`^([a-zA-Z]+://[^/]*):/`)

// withoutEmptyPort removes the empty port of ssh://git@host:/path, which stands for git@host:path.
func withoutEmptyPort(url string) string { return emptyPort.ReplaceAllString(url, "$1/") }

// checkEnd returns an error if a prefix could end within the name of a host or of a repository, or has an empty port.
func checkEnd(prefix string) error {
	if !strings.HasSuffix(prefix, "/") || withoutEmptyPort(prefix) != prefix {
		return errors.New("want two URL prefixes that end in a slash, with an equals sign between them and no empty port")
	}
	return nil
}

// Asked returns the URL that is asked for a written one. Of several prefixes the longest counts. It ignores an empty port.
func (r Rewrites) Asked(written string) string {
	if len(r) == 0 { // several times in each sync
		return written
	}
	longest, text := [2]string{}, withoutEmptyPort(written)
	for _, one := range r {
		if hasPrefix(text, one[0]) && len(one[0]) > len(longest[0]) {
			longest = one
		}
	}
	if longest[0] == "" {
		return written
	}
	return longest[1] + text[len(longest[0]):]
}

// WithWritten returns URLs together with those that are asked at one of them. It does not change its argument.
func (r Rewrites) WithWritten(urls []string) []string {
	all := slices.Clone(urls)
	for _, asked := range urls {
		asked = withoutEmptyPort(asked)
		for _, one := range r {
			if !hasPrefix(asked, one[1]) {
				continue
			}
			written := one[0] + asked[len(one[1]):]
			if strings.EqualFold(r.Asked(written), asked) && !slices.Contains(all, written) {
				all = append(all, written)
			}
		}
	}
	return all
}

// hasPrefix ignores case, as remotes are told apart.
func hasPrefix(text, prefix string) bool {
	return len(text) >= len(prefix) && strings.EqualFold(text[:len(prefix)], prefix)
}
