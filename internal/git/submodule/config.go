package submodule

import (
	"errors"
	"strings"
)

// configReader parses a file in Git's configuration syntax: git_parse_source of Git.
type configReader struct {
	text string
	at   int
}

// errSyntax completes a sentence that begins with the name of the file.
var errSyntax = errors.New("is not in Git's configuration syntax")

// ParseConfig calls visit for each variable of a configuration file. Section and key are in lower case; name
// is the subsection. hasValue is false for a variable without "=".
func ParseConfig(content []byte, visit func(section, name, key, value string, hasValue bool) error) error {
	if len(content) > MaxSize {
		return errors.New("is longer than 1 MiB")
	}
	r := &configReader{text: strings.TrimPrefix(string(content), "\xef\xbb\xbf")}
	section, name := "", ""
	for {
		c, ok := r.next()
		switch {
		case !ok:
			return nil
		case isSpace(c):
		case c == '#' || c == ';':
			r.skipLine()
		case c == '[':
			if section, name, ok = r.section(); !ok {
				return errSyntax
			}
		case isLetter(c):
			key, value, hasValue, ok := r.variable(c)
			if !ok {
				return errSyntax
			}
			if err := visit(section, name, key, value, hasValue); err != nil {
				return err
			}
		default:
			return errSyntax
		}
	}
}

// next returns the next byte; \r\n is one \n. At the end ok is false, and c is \n.
func (r *configReader) next() (c byte, ok bool) {
	if r.at == len(r.text) {
		return '\n', false
	}
	if strings.HasPrefix(r.text[r.at:], "\r\n") {
		r.at++
	}
	r.at++
	return r.text[r.at-1], true
}

func (r *configReader) skipLine() {
	for c, ok := r.next(); ok && c != '\n'; c, ok = r.next() {
	}
}

// section reads a header after its bracket: [base], [base.name] or [base "name"].
func (r *configReader) section() (section, name string, ok bool) {
	var base strings.Builder
	for {
		c, ok := r.next()
		switch {
		case !ok:
			return "", "", false
		case c == ']':
			section, name, _ := strings.Cut(base.String(), ".")
			return section, name, base.Len() > 0
		case isSpace(c):
			name, ok := r.subsection(c)
			if base, before, dotted := strings.Cut(base.String(), "."); dotted { // as in Git: [a.b "c"] is of the name b.c
				return base, before + "." + name, ok
			}
			return base.String(), name, ok
		case !isLetter(c) && !isDigit(c) && c != '-' && c != '.':
			return "", "", false
		}
		base.WriteByte(lower(c))
	}
}

// subsection reads the quoted name and the bracket after it. c is the space before it.
func (r *configReader) subsection(c byte) (name string, ok bool) {
	for ok = true; isSpace(c); c, ok = r.next() {
		if c == '\n' || !ok {
			return "", false
		}
	}
	if c != '"' {
		return "", false
	}
	var text strings.Builder
	for {
		c, ok := r.next()
		if ok && c == '\\' {
			c, ok = r.next()
		} else if ok && c == '"' {
			end, ok := r.next()
			return text.String(), ok && end == ']'
		}
		if !ok || c == '\n' {
			return "", false
		}
		text.WriteByte(c)
	}
}

// variable reads a variable whose key begins with c.
func (r *configReader) variable(c byte) (key, value string, hasValue, ok bool) {
	var name strings.Builder
	more := true
	for ; more && (isLetter(c) || isDigit(c) || c == '-'); c, more = r.next() {
		name.WriteByte(lower(c))
	}
	for more && (c == ' ' || c == '\t') {
		c, more = r.next()
	}
	if c == '\n' {
		return name.String(), "", false, true
	}
	if c != '=' {
		return "", "", false, false
	}
	value, ok = r.value()
	return name.String(), value, true, ok
}

// value reads a value to the end of its line. Space around it does not count, unless it is quoted.
func (r *configReader) value() (value string, ok bool) {
	var text []byte
	quoted, end := false, 0 // end of text without trailing space
	for {
		c, _ := r.next()
		switch {
		case c == '\n':
			return string(text[:end]), !quoted
		case isSpace(c) && !quoted:
			if len(text) > 0 {
				text = append(text, c)
			}
			continue
		case (c == '#' || c == ';') && !quoted:
			r.skipLine()
			return string(text[:end]), true
		case c == '"':
			quoted = !quoted
			end = len(text)
			continue
		case c == '\\':
			c, _ = r.next()
			switch c {
			case '\n':
				end = len(text)
				continue
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case 'n':
				c = '\n'
			case '\\', '"':
			default:
				return "", false
			}
		}
		text = append(text, c)
		end = len(text)
	}
}

func isSpace(c byte) bool  { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
func isLetter(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
