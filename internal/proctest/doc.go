// Package proctest runs lockstep processes for tests. It starts the test binary itself as the lockstep command, so the
// TestMain of a package that uses it must register that command with testscript.Main.
package proctest
