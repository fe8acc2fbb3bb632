package term

import (
	"io"
	"os"

	"golang.org/x/term"

	"lockstep/internal/config"
)

// Streams are the outputs, the environment and the input of a command.
type Streams struct {
	Stdout, Stderr io.Writer
	Environ        []string
	Stdin          io.Reader // nil if there is none
}

// Colours reports whether to use colours on w: it is a terminal, and neither NO_COLOR nor TERM=dumb disables them.
func (s Streams) Colours(w io.Writer) bool {
	return Terminal(w) && s.Variable("NO_COLOR") == "" && s.Variable("TERM") != "dumb"
}

// Variable returns an environment variable, "" if unset.
func (s Streams) Variable(name string) string { return config.Variable(s.Environ, name) }

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// TerminalSize returns the size of the terminal w, zeros if unknown.
func TerminalSize(w io.Writer) (columns, rows int) {
	if file, ok := w.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil {
			return columns, rows
		}
	}
	return 0, 0
}
