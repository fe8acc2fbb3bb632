package term

import (
	"errors"
	"strconv"
	"strings"

	"lockstep/internal/config"
	"lockstep/internal/redisx"
)

// OneLine returns the error's text on one line.
func OneLine(err error) string {
	var text string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case text == "" || line == "":
			text += line
		case strings.HasSuffix(text, ":"):
			text += " " + line
		default:
			text += "; " + line
		}
	}
	return text
}

// Exit codes of the command.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnavailable = 3 // Redis
	ExitTimedOut    = 4
	ExitRevoked     = 5 // token
)

// ExitError is an error with an exit code.
type ExitError struct {
	Code int
	Err  error // nil prints nothing
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// UsageError gives err the exit code of wrong usage. It returns nil if err is nil.
func UsageError(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{ExitUsage, err}
}

// ExitCode returns the exit code for err.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if e, ok := errors.AsType[*ExitError](err); ok {
		return e.Code
	}
	if _, ok := errors.AsType[*config.InvalidError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[*redisx.UnavailableError](err); ok {
		return ExitUnavailable
	}
	return ExitFailed
}
