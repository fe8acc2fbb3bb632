package forge

import "log/slog"

// Source is one place that webhooks come from, and what its deliveries may bring about. They are sent to
// POST /hooks/{Name}. It prints without its secrets.
type Source struct {
	Name     string
	Kind     Kind
	Secrets  []string // one, or two while it is changed; none only if Unsigned
	Unsigned bool     // deliveries without a signature are taken
	URLs     []string // beginnings of the URLs that it may speak of; any if empty
	Auto     *Auto    // nil: repositories that nobody watches are ignored
}

// Auto says how repositories that nobody watches are watched from their first event on.
type Auto struct {
	App        string
	Credential string   // by name; empty for none
	URLs       []string // beginnings of the URLs of such repositories
}

// Allows reports whether the repository at remote may be watched without having been asked for.
func (a *Auto) Allows(remote string) bool { return a != nil && covers(a.URLs, remote) }

// String leaves the secrets out.
func (s Source) String() string { return "source " + s.Name + " (" + string(s.Kind) + ")" }

// GoString leaves the secrets out of %#v.
func (s Source) GoString() string { return s.String() }

// MarshalText leaves the secrets out of what encoders write.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue leaves the secrets out of logs.
func (s Source) LogValue() slog.Value { return slog.StringValue(s.String()) }
