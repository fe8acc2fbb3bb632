// Package demo runs lockstep demo: a Git server with sample repositories, an embedded Redis and worker processes.
//
// It pushes mostly to one hot repository, kills a worker while it holds the hot repository's lease, force-pushes to another
// repository and reads every published tree throughout. A board counts changes and results; the report compares them with the
// guarantees.
package demo
