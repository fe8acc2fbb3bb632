package redisx

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// UnavailableError reports that a Redis server cannot be reached or cannot serve. Its text says what to do.
type UnavailableError struct{ err error }

func (e *UnavailableError) Error() string { return e.err.Error() }

// Unwrap returns the error of the command.
func (e *UnavailableError) Unwrap() error { return e.err }

// Explain adds what to do to the error of a command sent to server. It returns an [UnavailableError] if the server
// cannot serve, an error with advice if Redis refused the command, and otherwise err unchanged.
func Explain(server Server, err error) error {
	_, answered := errors.AsType[redis.Error](err)
	switch unavailable := Unavailable(err); {
	case errors.Is(err, context.Canceled):
		return err
	case unavailable && answered:
		return &UnavailableError{fmt.Errorf("redis at %s cannot serve at present; check it, or name another "+
			"with --redis: %w", server, err)}
	case unavailable:
		return &UnavailableError{fmt.Errorf("redis at %s does not answer; start it, or name another with --redis: %w",
			server, err)}
	case answered:
		return fmt.Errorf("redis at %s refused the command; check its password, the user's permissions and "+
			"--prefix: %w", server, err)
	}
	return err
}
