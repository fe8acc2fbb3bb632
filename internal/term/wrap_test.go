package term

import "testing"

func TestWrap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":              {"", ""},
		"one line":             {"a text", "a text"},
		"a long line":          {"one two three four five six", "one two three four\nfive six"},
		"exactly the columns":  {"one two three four 5", "one two three four 5"},
		"characters, no bytes": {"äöü äöü äöü äöü äöü", "äöü äöü äöü äöü äöü"},
		"a paragraph":          {"one two\nthree four five\nsix\n\nseven\n", "one two three four\nfive six\n\nseven\n"},
		"a table":              {"Rows:\n\n  A  one\n  BC D   two words and more\n\nEnd", "Rows:\n\n  A  one\n  BC D   two words\n         and more\n\nEnd"},
		"an indented line":     {"  one two three four five", "  one two three four\n  five"},
		"a long word":          {"a word/of/more/than/twenty characters", "a\nword/of/more/than/twenty\ncharacters"},
	} {
		if got := Wrap(tc.text, 20); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
