package term

import (
	"strings"
	"unicode"
)

// Marks of colours in a table's cells. They take no room, and become escape sequences where these are wanted.
const (
	markEnd = '\uE000' + iota // of the private use area, which nobody's text is in
	MarkGood
	MarkWarn
	MarkBad
	MarkFaint
)

var sequences = map[rune]string{markEnd: "\x1b[0m", MarkGood: "\x1b[32m", MarkWarn: "\x1b[33m", MarkBad: "\x1b[31m", MarkFaint: "\x1b[2m"}

// Paint marks text with a colour.
func Paint(mark rune, text string) string { return string(mark) + text + string(markEnd) }

// gap is how far columns are apart.
const gap = 2

// Align lays out rows of cells, a row a line and a tab between cells. A column is as wide as its widest cell in
// rows that follow each other, as in text/tabwriter, which would count the colours. What could command the
// terminal is left out: many a cell says what others have chosen.
func Align(text string, colours bool) string {
	var rows [][]string
	for line := range strings.Lines(text) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	widths := columns(rows)
	var b strings.Builder
	for r, row := range rows {
		owed := 0 // spaces
		for c, cell := range row {
			if cell != "" {
				b.WriteString(strings.Repeat(" ", owed))
				b.WriteString(Rendered(cell, colours))
				owed = 0
			}
			if c < len(widths[r]) {
				owed += widths[r][c] - width(cell)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// columns are the widths of each row's cells but the last, the gap included.
func columns(rows [][]string) [][]int {
	widths := make([][]int, len(rows))
	for c, found := 0, true; found; c++ {
		found = false
		for from := 0; from < len(rows); {
			to, widest := from, 0
			for to < len(rows) && len(rows[to]) > c+1 {
				widest = max(widest, width(rows[to][c]))
				to++
			}
			for r := from; r < to; r++ {
				widths[r], found = append(widths[r], widest+gap), true
			}
			from = to + 1
		}
	}
	return widths
}

// width is how many characters of a cell are seen.
func width(cell string) int {
	n := 0
	for _, r := range cell {
		if _, mark := sequences[r]; !mark && !unicode.IsControl(r) {
			n++
		}
	}
	return n
}

func Rendered(cell string, colours bool) string {
	var b strings.Builder
	for _, r := range cell {
		switch sequence, mark := sequences[r]; {
		case mark && colours:
			b.WriteString(sequence)
		case !mark && !unicode.IsControl(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Printable is text of somebody else's on one line of a terminal, of bounded length.
func Printable(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	if short := []rune(text); len(short) > most {
		text = string(short[:most]) + "…"
	}
	return text
}

// Dash is a cell that has something in it.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
