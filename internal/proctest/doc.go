// Package proctest runs lockstep processes for tests. The TestMain of a test binary that uses it must make the binary the
// lockstep command, with testscript.Main.
package proctest
