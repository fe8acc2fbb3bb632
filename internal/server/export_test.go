package server

// Patterns returns the patterns of the endpoints that cfg enables.
func Patterns(cfg Config) []string { return mount(cfg).patterns }

// OpenAPI returns the OpenAPI document.
func OpenAPI() []byte { return openAPI }
