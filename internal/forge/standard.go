package forge

import (
	"cmp"
	"strings"

	"lockstep/events"
)

// standardEvent is the body of a Standard Webhooks delivery: a document with a type and data. It may be one of our own
// change documents; its app, credential and force are ignored, because a webhook may not set them.
type standardEvent struct {
	Type string `json:"type"`
	Data struct {
		Repo    string `json:"repo"` // derived from URL if absent
		URL     string `json:"url"`
		Ref     string `json:"ref"`
		Before  string `json:"before"`
		After   string `json:"after"`
		From    string `json:"from"` // of moved
		FromURL string `json:"from_url"`
		To      string `json:"to"` // of moved, in a change document; repo is then the old path
	} `json:"data"`
}

// readStandard decodes a document whose type is an [EventKind] or the change type of the same name.
func readStandard(r *reader, body []byte) {
	var doc standardEvent
	if !r.decode(body, &doc) {
		return
	}
	r.d.Event = eventName(doc.Type)
	data := doc.Data
	switch kind := strings.TrimSuffix(strings.TrimPrefix(doc.Type, "lockstep.change."), ".v1"); EventKind(kind) {
	case "ping":
		r.d.Ping = true
	case Moved:
		if data.To != "" {
			data.Repo, data.From = data.To, cmp.Or(data.From, data.Repo)
		}
		if repo, ok := r.repository(standardName(data.Repo, data.URL), data.URL); ok {
			r.moved(repo, data.From, data.FromURL)
		}
	case Pushed, RefDeleted, Removed, DefaultChanged, Archived:
		if repo, ok := r.repository(standardName(data.Repo, data.URL), data.URL); ok {
			r.standard(EventKind(kind), repo, fullRef(data.Ref), data.Before, data.After)
		}
	default:
		r.ignore(notOfInterest)
	}
}

// standard adds an event. A push without a ref is a push to the default branch.
func (r *reader) standard(kind EventKind, repo repository, ref, before, after string) {
	switch {
	case kind == Pushed && ref == "":
		r.d.Events = append(r.d.Events, Event{
			Kind: Pushed, Repo: repo.path, URLs: repo.urls, Before: commit(before), After: commit(after),
		})
	case kind == Pushed:
		r.ref(repo, ref, before, after, false)
	case kind == RefDeleted, kind == Removed && ref != "":
		r.ref(repo, ref, before, "", true)
	case kind == DefaultChanged:
		r.defaultChanged(repo, strings.TrimPrefix(ref, "refs/heads/"))
	default:
		r.whole(kind, repo)
	}
}

// fullRef returns the full name of a ref, given by its full name or as a branch; "" for the default branch.
func fullRef(ref string) string {
	parsed, err := events.ParseRef(ref)
	if err != nil {
		return ref
	}
	return parsed.String()
}

// standardName returns the repository's name, derived from the URL if it is empty.
func standardName(name, remote string) string {
	if name != "" {
		return name
	}
	path, err := events.RepoPathFromURL(remote)
	if err != nil {
		return ""
	}
	return path.String()
}
