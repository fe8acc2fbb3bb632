// Package term is the terminal side of a command: output as table, JSON or YAML, argument checks and exit codes.
package term
