// Package publish contains programs in shell, Go, Node and Python that publish a change and wait for its result, and the
// tests that run them. docs/publishing.md contains copies of them.
package publish
