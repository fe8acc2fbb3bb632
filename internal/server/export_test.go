package server

import (
	"context"
	"time"
)

// Patterns returns the patterns of the endpoints that cfg enables.
func Patterns(cfg Config) []string { return mount(cfg).patterns }

// Patience returns how much longer to wait for a client that took a time to accept a number of bytes.
func Patience(sent int64, waited time.Duration) time.Duration { return patience(sent, waited) }

// OpenAPI returns the OpenAPI document.
func OpenAPI() []byte { return openAPI }

// Turns limits how many lists of files are read at once for each app.
type Turns struct{ turns }

// Run calls f, after others of the app if too many run.
func (t *Turns) Run(ctx context.Context, app string, f func() error) error { return t.run(ctx, app, f) }

// Apps returns the number of apps that have turns.
func (t *Turns) Apps() int { return len(t.by) }
