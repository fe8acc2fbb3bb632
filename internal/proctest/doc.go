// Package proctest starts lockstep processes for tests and waits for what they do. Its importer's TestMain makes the test
// binary the lockstep command.
package proctest
