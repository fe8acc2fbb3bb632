package term

import (
	"io"
	"os"

	"golang.org/x/term"

	"lockstep/internal/config"
)

// Streams are the outputs and the environment of a command.
type Streams struct {
	Stdout, Stderr io.Writer
	Environ        []string
}

// Variable returns an environment variable, "" if unset.
func (s Streams) Variable(name string) string { return config.Variable(s.Environ, name) }

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
