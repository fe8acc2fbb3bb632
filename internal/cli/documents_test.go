package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// TestCommandsInDocumentsParse checks that each lockstep command in the documents and in the examples of help texts exists and has
// the flags used.
func TestCommandsInDocumentsParse(t *testing.T) {
	t.Parallel()
	paths := proctest.Must(filepath.Glob("../../docs/*.md"))(t)
	paths = append(paths, proctest.Must(filepath.Glob("../../docs/adr/*.md"))(t)...)
	paths = append(paths, "../../README.md", "../../CONTRIBUTING.md")
	typed := regexp.MustCompile(`(?m)(?:^ *|[;&|(] *|\b[A-Z_]+=\S+ +|\b(?:exec|sudo) |-- /)(?:\./|bin/|go run \./cmd/)?lockstep ([a-z][^\n]*)`)
	found := 0
	for _, path := range paths {
		for _, code := range codeOf(string(proctest.Must(os.ReadFile(path))(t))) {
			for _, match := range typed.FindAllStringSubmatch(code, -1) {
				found++
				if err := parses(shellWords(strings.ReplaceAll(match[1], "…", "1"))); err != nil {
					t.Errorf("%s: lockstep %s: %v", filepath.Base(path), match[1], err)
				}
			}
		}
	}
	if found == 0 {
		t.Error("found no commands in the documents")
	}
	everyCommand(func(command string, cmd *cobra.Command) {
		for _, match := range typed.FindAllStringSubmatch(cmd.Example, -1) {
			if err := parses(shellWords(match[1])); err != nil {
				t.Errorf("example of %s: lockstep %s: %v", command, match[1], err)
			}
		}
	})
}

// codeOf returns the lines of the shell blocks, with continued lines joined, and the lockstep commands in backquotes.
func codeOf(text string) []string {
	var code []string
	for _, b := range blocksOf(text) {
		if b.isShell() {
			code = append(code, b.lines...)
		}
	}
	for _, match := range regexp.MustCompile("`(lockstep [^`]+)`").FindAllStringSubmatch(text, -1) {
		code = append(code, strings.Join(strings.Fields(match[1]), " "))
	}
	return code
}

// block is code in a document, fenced or indented.
type block struct {
	language string // of a fence
	lines    []string
}

// isShell reports whether the block is shell code, the default language.
func (b block) isShell() bool { return b.language == "" || b.language == "sh" || b.language == "bash" }

func blocksOf(text string) []block {
	var blocks []block
	var b *block
	fenced, continued, blank := false, false, true
	add := func(line string) {
		if continued {
			last := &b.lines[len(b.lines)-1]
			*last = strings.TrimSuffix(*last, "\\") + strings.TrimSpace(line)
		} else {
			b.lines = append(b.lines, line)
		}
		continued = strings.HasSuffix(line, "\\")
	}
	end := func() {
		if b != nil && len(b.lines) > 0 {
			blocks = append(blocks, *b)
		}
		b, continued = nil, false
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		indented, isIndented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(trimmed, "```"):
			end()
			if fenced = !fenced; fenced {
				b = &block{language: strings.TrimPrefix(trimmed, "```")}
			}
		case fenced:
			add(line)
		case isIndented && trimmed != "" && (b != nil || blank):
			if b == nil {
				b = &block{}
			}
			add(strings.TrimLeft(indented, " "))
		default:
			end()
		}
		blank = trimmed == ""
	}
	end()
	return blocks
}

// shellWords returns the words of the first command of a line.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, begun := rune(0), false
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			end()
		case strings.ContainsRune("|;&<>)`", r), r == '#' && !begun:
			end()
			return words
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return words
}

// parses returns an error if the command or a flag does not exist.
func parses(args []string) error {
	root := newRootCommand(term.Streams{Stdout: io.Discard, Stderr: io.Discard})
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil && !strings.HasPrefix(err.Error(), "flag needs an argument") { // as in "the flag --root"
		return err
	}
	if cmd.HasSubCommands() {
		return term.NoArgs(cmd, cmd.Flags().Args())
	}
	return nil
}
