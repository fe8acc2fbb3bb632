package lfs

import (
	"regexp"
	"slices"
	"strings"

	"lockstep/internal/git/wildmatch"
)

// Limits of Git on attributes.
const (
	maxAttributes = 1 << 20 // bytes in a .gitattributes file; Git allows 100 MiB
	maxLine       = 2048    // bytes; longer ones are ignored
)

// Costs of reading attributes, in steps of the matcher.
const (
	parseSteps = 2    // that a byte of a .gitattributes file counts as
	macroSteps = 1000 // that setting an attribute counts as, beyond manyAttributes of one file

	manyAttributes = 64 // more than files have
)

// rule is a line of a .gitattributes file.
type rule struct {
	pattern  string
	basename bool // the pattern has no slash and is matched with the last segment
	sets     []setting
}

// setting sets an attribute: to "true", "false", "unset" or a text, which has a "=" before it.
type setting struct{ name, value string }

// rules are those of one file.
type rules struct {
	lines  []rule
	macros map[string][]setting // the last definition of each
}

var attributeName = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.-]*$`)

const blanks = " \t\r\n"

// parseRules parses a .gitattributes file as Git does. It ignores what Git warns of.
func parseRules(content []byte) rules {
	parsed := rules{macros: map[string][]setting{}}
	text := strings.TrimPrefix(string(content), "\ufeff")
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimLeft(line, blanks)
		if line == "" || line[0] == '#' || len(line) >= maxLine {
			continue
		}
		pattern, rest, ok := cutPattern(line)
		if !ok {
			continue
		}
		if name, isMacro := strings.CutPrefix(pattern, "[attr]"); isMacro && name != "" {
			if sets, ok := parseSettings(rest); ok && attributeName.MatchString(name) {
				parsed.macros[name] = sets
			}
			continue
		}
		sets, ok := parseSettings(rest)
		if !ok || strings.HasPrefix(pattern, "!") || strings.HasSuffix(pattern, "/") { // refused; for folders
			continue
		}
		r := rule{pattern: strings.TrimPrefix(pattern, "/"), basename: !strings.Contains(pattern, "/"), sets: sets}
		parsed.lines = append(parsed.lines, r)
	}
	return parsed
}

func cutWord(text string) (word, rest string, ok bool) {
	end := strings.IndexAny(text, blanks)
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], end > 0
}

// cutPattern cuts the pattern, which may be quoted, from a line.
func cutPattern(line string) (pattern, rest string, ok bool) {
	if line[0] == '"' {
		if pattern, rest, ok = unquote(line[1:]); ok {
			return pattern, rest, true
		}
	}
	return cutWord(line)
}

// unquote reads a text in C style up to the closing quote.
func unquote(text string) (value, rest string, ok bool) {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return out.String(), text[i+1:], true
		case '\\':
			if i++; i == len(text) {
				return "", "", false
			}
			if known := strings.IndexByte(`abfnrtv\"`, text[i]); known >= 0 {
				out.WriteByte("\a\b\f\n\r\t\v\\\""[known])
				continue
			}
			if i+2 >= len(text) || text[i] < '0' || text[i] > '3' {
				return "", "", false
			}
			octal := 0
			for _, digit := range []byte(text[i : i+3]) {
				if digit < '0' || digit > '7' {
					return "", "", false
				}
				octal = octal*8 + int(digit-'0')
			}
			out.WriteByte(byte(octal))
			i += 2
		default:
			out.WriteByte(c)
		}
	}
	return "", "", false
}

func parseSettings(text string) (sets []setting, ok bool) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(blanks, r) }) {
		name, value, hasValue := strings.Cut(word, "=")
		s := setting{name, "true"}
		switch {
		case word[0] == '-':
			s = setting{strings.TrimPrefix(name, "-"), "false"}
		case word[0] == '!':
			s = setting{strings.TrimPrefix(name, "!"), "unset"}
		case hasValue:
			s.value = "=" + value
		}
		if !attributeName.MatchString(s.name) {
			return nil, false // Git ignores the line
		}
		sets = append(sets, s)
	}
	return sets, true
}

// isLFS reports whether the attribute filter of a path is lfs. stack has the rules of the folders from the top to the
// file's, and their paths with a slash at the end.
func isLFS(m *wildmatch.Matcher, path string, stack []folderRules) bool {
	values := map[string]string{}
	macros := stack[0].macros
	var set func(sets []setting)
	set = func(sets []setting) {
		for _, s := range slices.Backward(sets) {
			if len(values) > manyAttributes {
				m.Steps += macroSteps
			}
			if m.IsExhausted() {
				return
			}
			if _, known := values[s.name]; known {
				continue
			}
			values[s.name] = s.value
			if s.value == "true" {
				set(macros[s.name])
			}
		}
	}
	base := path[strings.LastIndexByte(path, '/')+1:]
	for _, folder := range slices.Backward(stack) {
		for _, line := range slices.Backward(folder.lines) {
			text := base
			if !line.basename {
				text = path[len(folder.path):]
			}
			if m.Match(line.pattern, text) {
				set(line.sets)
			}
			if value, known := values["filter"]; known {
				return value == "=lfs"
			}
		}
	}
	return false
}

// folderRules are the rules of a folder.
type folderRules struct {
	rules
	path string // "" for the top, else with a slash at the end
}
