package main

import (
	"errors"
	"strings"

	"lockstep/internal/config"
	"lockstep/internal/redisx"
)

// oneLine is the error's text on one line: several errors in one, and what YAML has to say, have more.
func oneLine(err error) string {
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
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnavailable = 3 // Redis
	exitTimedOut    = 4
)

// exitError is an error with an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// usageError gives an error the exit code of wrong usage. It returns nil if err is nil.
func usageError(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUsage, err}
}

// exitCode returns the exit code that err calls for.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*config.InvalidError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*redisx.UnavailableError](err); ok {
		return exitUnavailable
	}
	return exitFailed
}
