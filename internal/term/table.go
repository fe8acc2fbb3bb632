package term

import (
	"cmp"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode"
)

var trailingSpace = regexp.MustCompile(`(?m) +$`) // of empty cells

// Align lays out rows of cells: one row per line, cells separated by tabs. It removes other control
// characters, because cells quote foreign text.
func Align(text string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = io.WriteString(w, strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, text))
	_ = w.Flush() // a strings.Builder does not fail
	return trailingSpace.ReplaceAllString(b.String(), "")
}

// Clean removes control characters from foreign text.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, text)
}

// Printable makes foreign text safe for one line of a terminal and limits its length.
func Printable(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if short := []rune(text); len(short) > most {
		text = string(short[:most]) + "…"
	}
	return text
}

// Dash returns s, or "-" if s is empty.
func Dash(s string) string { return cmp.Or(s, "-") }
