// Package publish has programs that publish a change and wait for its result, in shell, Go, Node and Python, and the
// tests that run them. docs/publishing.md links them.
package publish
