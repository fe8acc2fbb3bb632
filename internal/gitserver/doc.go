// Package gitserver is a real Git server for tests and demonstrations: bare repositories in a folder,
// served over HTTP on 127.0.0.1 by "git http-backend", with commits made to order.
//
// # What it promises
//
// Clients meet Git's own upload-pack, not an imitation. Every commit is deterministic: the author is
// fixed and the date advances by a second per commit. No configuration of the machine or the user
// leaks in. The server counts what it is asked, per repository, so a test can prove that work was
// spared or that two fetches overlapped; it can hold a request, answer a status of the test's
// choosing, and ask for credentials. The same repositories can be served over TLS ([WithTLS]), over SSH
// ([Server.StartSSH]), and by another implementation of Git ([Server.StartDulwich]).
//
// # What it does not do
//
// It takes no pushes: commits are written straight into the bare repository. It imports no testing
// package, so that a command may use it too, and it needs a git binary in the PATH.
package gitserver
