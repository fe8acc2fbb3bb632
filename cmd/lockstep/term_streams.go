package main

import (
	"io"
	"os"

	"golang.org/x/term"

	"lockstep/internal/config"
)

// streams are what the process was given by its parent.
type streams struct {
	stdout, stderr io.Writer
	environ        []string
}

// colours reports whether w, which is one of the streams, wants them: it is a terminal, and nobody has said no.
func (s streams) colours(w io.Writer) bool {
	return terminal(w) && s.variable("NO_COLOR") == "" && s.variable("TERM") != "dumb"
}

func (s streams) variable(name string) string { return config.Variable(s.environ, name) }

// terminal reports whether w is one, so that people look at what is printed as it comes.
func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// terminalSize is how many columns and rows the terminal has that w is; none, when w is no terminal or does not say.
func terminalSize(w io.Writer) (columns, rows int) {
	if file, ok := w.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil {
			return columns, rows
		}
	}
	return 0, 0
}
