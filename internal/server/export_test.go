package server

import "time"

// Patterns returns the patterns of the endpoints that cfg enables.
func Patterns(cfg Config) []string { return mount(cfg).patterns }

// Patience returns how much longer to wait for a client that took a time to accept a number of bytes.
func Patience(sent int64, waited time.Duration) time.Duration { return patience(sent, waited) }

// OpenAPI returns the OpenAPI document.
func OpenAPI() []byte { return openAPI }
