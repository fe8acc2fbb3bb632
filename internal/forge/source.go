package forge

import "log/slog"

// Source is a sender of webhooks and the permissions of its deliveries, which are received at POST /hooks/{Name}.
// Its secrets are never printed.
type Source struct {
	Name     string
	Kind     Kind
	Secrets  []string // one, or two during rotation; none only if Unsigned
	Unsigned bool     // accepts deliveries without a signature
	URLs     []string // allowed URL prefixes; any URL if empty
	Auto     *Auto    // nil ignores unwatched repositories
}

// Auto configures automatic watches, created at the first event of an unwatched repository.
type Auto struct {
	App        string
	Credential string   // name of the credential; empty for none
	URLs       []string // allowed URL prefixes
}

// Allows reports whether the repository at remote may be watched automatically.
func (a *Auto) Allows(remote string) bool { return a != nil && covers(a.URLs, remote) }

// String returns the source's name and kind, without its secrets.
func (s Source) String() string { return "source " + s.Name + " (" + string(s.Kind) + ")" }

// GoString implements [fmt.GoStringer], without the secrets.
func (s Source) GoString() string { return s.String() }

// MarshalText implements [encoding.TextMarshaler], without the secrets.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue implements [slog.LogValuer], without the secrets.
func (s Source) LogValue() slog.Value { return slog.StringValue(s.String()) }
