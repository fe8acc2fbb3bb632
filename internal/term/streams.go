package term

import (
	"io"

	"lockstep/internal/config"
)

// Streams are the outputs and the environment of a command.
type Streams struct {
	Stdout, Stderr io.Writer
	Environ        []string
}

// Variable returns an environment variable, "" if unset.
func (s Streams) Variable(name string) string { return config.Variable(s.Environ, name) }
