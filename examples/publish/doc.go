// Package publish contains programs in shell, Go, Node and Python that publish a change and wait for its result, and tests
// that run them. docs/publishing.md includes them verbatim.
package publish
