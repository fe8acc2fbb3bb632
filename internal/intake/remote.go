package intake

import (
	"net/url"
	"strings"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/watch"
)

// answer is what is known of a question.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// isDefault reports whether what was pushed is the remote's default branch. A tag is none.
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

// movedURL is where a repository is to be fetched from after its move: as before, by SSH or over another
// port, if the URL so far ended in the name so far, and else where the forge says.
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
