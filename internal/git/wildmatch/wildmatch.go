// Package wildmatch matches patterns with paths as Git does, for example in .gitignore and .gitattributes.
//
//	var m wildmatch.Matcher
//	m.Match("docs/**/*.md", "docs/guide/start.md") // true
package wildmatch

import "strings"

// MaxSteps bounds the work of a Matcher. A hostile pattern needs exponential time.
const MaxSteps = 500_000_000

// Matcher matches patterns as Git's wildmatch with WM_PATHNAME: neither * nor ? nor a class matches a slash,
// and ** as a whole segment matches any number of them. After [MaxSteps] it only fails. It is not safe for
// concurrent use.
type Matcher struct {
	Steps int // so far
}

// IsExhausted reports whether the Matcher has reached its limit, so that some of its answers may be wrong.
func (m *Matcher) IsExhausted() bool { return m.Steps > MaxSteps }

// Match reports whether the whole text matches the pattern.
func (m *Matcher) Match(pattern, text string) bool {
	tail, star := strings.CutPrefix(pattern, "*")
	if !strings.ContainsAny(tail, `*?[\`) { // as most are: a name, or the end of one
		if m.Steps++; m.Steps > MaxSteps {
			return false
		}
		start, ends := strings.CutSuffix(text, tail)
		return ends && (start == "" || star && !strings.Contains(start, "/"))
	}
	return m.wild(pattern, text, 0) == matched
}

// IsValid reports whether a pattern without slashes can match anything: each [ has its ], and each \ a
// character to quote.
func IsValid(pattern string) bool {
	for at := 0; at < len(pattern); at++ {
		switch pattern[at] {
		case '\\':
			if at++; at == len(pattern) {
				return false
			}
		case '[':
			if at, _ = matchClass(pattern, at+1, 0); at < 0 {
				return false
			}
		}
	}
	return true
}

// outcome is the result of a match. The others end the search of the stars around it.
type outcome int

const (
	matched     outcome = iota
	unmatched           // another number of bytes for a star may match
	endOfText           // no star can help: the text is too short
	beyondSlash         // only a ** can help
)

// wild matches pattern[at:] with text. It needs the start of the pattern to recognize a ** that is a segment.
func (m *Matcher) wild(pattern, text string, at int) outcome {
	for ; at < len(pattern); at++ {
		if m.Steps++; m.Steps > MaxSteps {
			return endOfText
		}
		c := pattern[at]
		if text == "" && c != '*' {
			return endOfText
		}
		switch c {
		case '*':
			return m.star(pattern, text, at)
		case '?':
			if text[0] == '/' {
				return unmatched
			}
		case '[':
			end, in := matchClass(pattern, at+1, text[0])
			if end < 0 {
				return endOfText
			}
			if !in || text[0] == '/' {
				return unmatched
			}
			at = end
		case '\\':
			if at++; at == len(pattern) || pattern[at] != text[0] {
				return unmatched
			}
		default:
			if c != text[0] {
				return unmatched
			}
		}
		text = text[1:]
	}
	if text != "" {
		return unmatched
	}
	return matched
}

// star matches a * or ** at pattern[at].
func (m *Matcher) star(pattern, text string, at int) outcome {
	end := at
	for end < len(pattern) && pattern[end] == '*' {
		end++
	}
	rest := pattern[end:]
	slashes := false
	if end-at > 1 && (at == 0 || pattern[at-1] == '/') && (rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`)) {
		slashes = true
		if strings.HasPrefix(rest, "/") && m.wild(pattern, text, end+1) == matched { // no segment
			return matched
		}
	}
	if rest == "" {
		if !slashes && strings.Contains(text, "/") {
			return unmatched
		}
		return matched
	}
	if !slashes && rest[0] == '/' {
		slash := strings.IndexByte(text, '/')
		if slash < 0 {
			return unmatched
		}
		return m.wild(pattern, text[slash+1:], end+1)
	}
	for {
		if m.Steps++; m.Steps > MaxSteps {
			return endOfText
		}
		switch result := m.wild(pattern, text, end); {
		case result == unmatched, result == beyondSlash && slashes:
		default:
			return result
		}
		if text == "" {
			return endOfText
		}
		if !slashes && text[0] == '/' {
			return beyondSlash
		}
		text = text[1:]
	}
}

// matchClass matches a byte with the class that begins at pattern[at], after its bracket. It returns the
// position of the closing bracket, or -1 if there is none.
func matchClass(pattern string, at int, c byte) (end int, in bool) {
	negated := at < len(pattern) && (pattern[at] == '!' || pattern[at] == '^')
	if negated {
		at++
	}
	previous := byte(0)
	for first := true; ; first = false {
		if at >= len(pattern) {
			return -1, false
		}
		p := pattern[at]
		if p == ']' && !first {
			break
		}
		switch {
		case p == '\\':
			if at++; at >= len(pattern) {
				return -1, false
			}
			p = pattern[at]
			in = in || p == c
		case p == '-' && previous != 0 && at+1 < len(pattern) && pattern[at+1] != ']':
			if at++; pattern[at] == '\\' {
				if at++; at >= len(pattern) {
					return -1, false
				}
			}
			in = in || c >= previous && c <= pattern[at]
			p = 0 // ends the range
		case p == '[' && at+1 < len(pattern) && pattern[at+1] == ':':
			name, _, closed := strings.Cut(pattern[at+2:], "]")
			name, named := strings.CutSuffix(name, ":")
			switch {
			case !closed:
				return -1, false
			case !named: // not a named class
				in = in || c == '['
			case classes[name] == nil:
				return -1, false
			default:
				in = in || classes[name](c)
				at += len(name) + 3
				p = 0
			}
		default:
			in = in || p == c
		}
		previous = p
		at++
	}
	return at, in != negated
}

func isAlpha(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isGraph(c byte) bool { return c > ' ' && c < 0x7f }

var classes = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  func(c byte) bool { return c >= 'a' && c <= 'z' },
	"print":  func(c byte) bool { return c == ' ' || isGraph(c) },
	"punct":  func(c byte) bool { return isGraph(c) && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' },
	"upper":  func(c byte) bool { return c >= 'A' && c <= 'Z' },
	"xdigit": func(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' },
}
