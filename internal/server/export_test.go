package server

// Patterns are those that a server with this configuration answers.
func Patterns(cfg Config) []string { return mount(cfg).patterns }

// OpenAPI is the document that is served.
func OpenAPI() []byte { return openAPI }
