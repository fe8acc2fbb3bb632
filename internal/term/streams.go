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
}

// Variable returns an environment variable, "" if unset.
func (s Streams) Variable(name string) string { return config.Variable(s.Environ, name) }

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
