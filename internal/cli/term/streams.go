package term

import (
	"io"
	"os"

	"golang.org/x/term"

	"lockstep/internal/config"
)

// Streams are what the process was given by its parent.
type Streams struct {
	Stdout, Stderr io.Writer
	Environ        []string
}

// Colours reports whether w, which is one of the streams, wants them: it is a terminal, and nobody has said no.
func (s Streams) Colours(w io.Writer) bool {
	return Terminal(w) && s.Variable("NO_COLOR") == "" && s.Variable("TERM") != "dumb"
}

func (s Streams) Variable(name string) string { return config.Variable(s.Environ, name) }

// Terminal reports whether w is one, so that people look at what is printed as it comes.
func Terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// TerminalSize is how many columns and rows the terminal has that w is; none, when w is no terminal or does not say.
func TerminalSize(w io.Writer) (columns, rows int) {
	if file, ok := w.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil {
			return columns, rows
		}
	}
	return 0, 0
}
