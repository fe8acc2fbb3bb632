package term

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

var rowText = regexp.MustCompile(`^ *\S.*?(  +)\S`)

// Wrap wraps text at a number of columns: paragraphs are filled, and a line that begins with a space is a row of a table, whose last
// column is continued below itself. Words that are longer stay whole.
func Wrap(text string, columns int) string {
	var lines, paragraph []string
	fill := func() {
		lines = appendWrapped(lines, "", strings.Join(paragraph, " "), 0, columns)
		paragraph = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' {
			paragraph = append(paragraph, line)
			continue
		}
		fill()
		at := len(line) - len(strings.TrimLeft(line, " "))
		if found := rowText.FindStringSubmatchIndex(line); found != nil {
			at = found[3]
		}
		lines = appendWrapped(lines, line[:at], line[at:], utf8.RuneCountInString(line[:at]), columns)
		if line == "" {
			lines = append(lines, "")
		}
	}
	fill()
	return strings.Join(lines, "\n")
}

// appendWrapped appends the lines of text, the first after head and the others indented.
func appendWrapped(lines []string, head, text string, indent, columns int) []string {
	words := strings.Fields(text)
	if len(words) == 0 {
		return lines
	}
	line := head + words[0]
	for _, word := range words[1:] {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines, line = append(lines, line), strings.Repeat(" ", indent)+word
			continue
		}
		line += " " + word
	}
	return append(lines, line)
}
