package intake

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
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

// movedURL returns the URL of a watched repository after its move. If the watched URL ends in the old name, only the
// name is replaced, which keeps the transport and port; otherwise it returns the forge's URL at the same host, to which the
// credential of the watch may be sent, or "".
func movedURL(watched string, e forge.Event) string {
	u, err := url.Parse(watched)
	if err != nil {
		return ""
	}
	fallback := ""
	for _, remote := range e.URLs {
		if to, err := url.Parse(remote); err == nil && to.Scheme == u.Scheme && events.HostPort(to) == events.HostPort(u) {
			fallback = cmp.Or(fallback, remote)
		}
	}
	if e.From.IsZero() || e.Repo.IsZero() {
		return fallback
	}
	path := strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), ".git")
	from := "/" + e.From.Key()
	if !strings.HasSuffix(strings.ToLower(path), from) {
		return fallback
	}
	moved := *u
	moved.Path = path[:len(path)-len(from)] + "/" + e.Repo.String() + u.Path[len(path):]
	moved.RawPath = ""
	text := moved.String()
	isSame := func(remote string) bool { return watch.SameRemote(text, remote) }
	if events.CheckRemote(text) == nil && slices.ContainsFunc(e.URLs, isSame) {
		return text
	}
	return fallback
}

// moved moves each clone whose path is the repository's old name to the new name. A clone at a path chosen by the user
// stays there and gets a new URL. If only the new URL is watched, its repositories are polled.
func (p *planner) moved(e forge.Event) {
	from := p.watches(e.FromURLs)
	if len(from) == 0 {
		to := p.watches(e.URLs)
		if p.poll(to); len(to) == 0 {
			p.ignore(fmt.Sprintf("nobody watches %s or %s", cmp.Or(e.From.String(), strings.Join(e.FromURLs, " ")), e.Name()))
		}
		return
	}
	if !e.From.IsZero() && e.From.Equal(e.Repo) { // only the spelling has changed
		p.poll(from)
		return
	}
	for _, w := range firstPerRepo(from, anyWatch) {
		to, remote := w.Repo, movedURL(w.URL, e)
		if remote == "" { // a poll finds where it is
			p.poll([]watch.Watch{w})
			continue
		}
		if to.Equal(e.From) && !e.Repo.IsZero() {
			to = e.Repo
		}
		p.add(events.Change{
			Type: events.ChangeMoved, Repo: w.Repo, To: to, URL: remote, Credential: w.Credential, Foreign: true,
		})
	}
}
