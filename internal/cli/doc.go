// Package cli implements the commands of lockstep, one file per command. A command parses flags and settings,
// calls the packages that do the work, and prints the outcome; package term contains the code that they
// share.
package cli
