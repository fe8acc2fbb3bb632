// Package gitserver is the real Git server that the demo, the benchmarks and the tests run against. It keeps
// bare repositories in a directory and serves them on 127.0.0.1 through "git http-backend".
//
// Responses come from Git's own upload-pack, not from an imitation. The same repositories can also be served
// over TLS ([WithTLS]), over SSH ([Server.StartSSH]) and by Dulwich, an independent implementation of Git
// ([Server.StartDulwich]).
//
// Commits are deterministic: the author is fixed and the date advances by one second per commit. The configuration of
// the machine and of the user is ignored. The server counts requests per repository, so that a test can verify that a
// fetch was avoided or that two fetches overlapped. It can also delay a request, answer with a given status and
// require credentials.
//
// Each repository also has a Git LFS server for downloads ([Server.LFS]).
//
// The server does not accept pushes: commits are written directly to the bare repository. It needs a git
// binary in PATH. It does not import package testing, so commands can use it too.
package gitserver
