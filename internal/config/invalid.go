package config

// InvalidError reports settings that conflict with each other, or that name invalid files or hosts.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }
