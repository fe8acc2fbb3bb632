package term

import (
	"strings"
	"unicode"
)

// Marks start a colour in a table cell. They have no width and become escape sequences where colours are on.
const (
	markEnd = '\uE000' + iota // private use area
	MarkGood
	MarkWarn
	MarkBad
	MarkFaint
)

var sequences = map[rune]string{markEnd: "\x1b[0m", MarkGood: "\x1b[32m", MarkWarn: "\x1b[33m", MarkBad: "\x1b[31m", MarkFaint: "\x1b[2m"}

// Paint colours text.
func Paint(mark rune, text string) string { return string(mark) + text + string(markEnd) }

const gap = 2

// Align lays out rows of cells: one row per line, cells separated by tabs. A column is as wide as its widest cell in adjacent rows,
// as in text/tabwriter, which would count the colours. It removes control characters, because cells quote foreign text.
func Align(text string, colours bool) string {
	var rows [][]string
	for line := range strings.Lines(text) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	widths := columns(rows)
	var b strings.Builder
	for r, row := range rows {
		pad := 0
		for c, cell := range row {
			if cell != "" {
				b.WriteString(strings.Repeat(" ", pad))
				b.WriteString(Rendered(cell, colours))
				pad = 0
			}
			if c < len(widths[r]) {
				pad += widths[r][c] - width(cell)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// columns returns the widths of each row's cells except the last, including the gap.
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

// width counts the visible characters of a cell.
func width(cell string) int {
	n := 0
	for _, r := range cell {
		if _, mark := sequences[r]; !mark && !unicode.IsControl(r) {
			n++
		}
	}
	return n
}

// Rendered returns a cell with its color marks as escape sequences, or without them, and without control characters.
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

// Printable makes foreign text safe for one line of a terminal and limits its length.
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

// Dash returns s, or "-" if s is empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
