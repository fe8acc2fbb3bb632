package intake

import (
	"net/url"
	"strings"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/watch"
)

// answer is the answer to a yes-no question that may be unknown.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// isDefault reports whether the push concerns the remote's default branch. A push of a tag does not.
func isDefault(e forge.Event) answer {
	switch {
	case !e.Ref.IsZero() && !strings.HasPrefix(e.Ref.String(), "refs/heads/"):
		return no
	case e.Ref.IsZero() || e.Default.IsZero():
		return unknown
	case e.Ref == e.Default:
		return yes
	}
	return no
}

// movedURL returns the URL of a watched repository after its move. If the watched URL ends in the old name, it replaces
// the name, which keeps the transport and port; else it returns the forge's URL.
func movedURL(watched string, e forge.Event) string {
	u, err := url.Parse(watched)
	if err != nil {
		return e.URL
	}
	path := strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), ".git")
	from := "/" + e.From.Key()
	if !strings.HasSuffix(strings.ToLower(path), from) {
		return e.URL
	}
	moved := *u
	moved.Path = path[:len(path)-len(from)] + "/" + e.Repo.String() + u.Path[len(path):]
	moved.RawPath = ""
	if text := moved.String(); events.CheckRemote(text) == nil && watch.SameRemote(text, e.URL) {
		return text
	}
	return e.URL
}
