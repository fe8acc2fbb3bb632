package forge

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"lockstep/events"
)

// maxEvents is how many events one delivery may have. A delivery with more refs has an event for each of
// the first 999, and then one for the zero Ref: the others are found by polls.
const maxEvents = 1000

// Why a delivery has no events.
const (
	notOfInterest = "event type not of interest"
	noAction      = "nothing that a clone depends on has changed"
	noRef         = "no branch or tag that can be watched has changed"
	noPath        = "the repository's name cannot be a path here"
	noURL         = "the delivery does not say where the repository is"
	badURL        = "the repository's URL is not one to clone by"
	otherURL      = "the repository's URL does not end in its name"
	notOfSource   = "not of this source's urls"
	movedIntoSelf = "moved above or below itself"
)

// reader gathers what a delivery says.
type reader struct {
	src    Source
	header http.Header
	d      Delivery
}

// repository is one whose name and URL have been checked.
type repository struct {
	path events.RepoPath
	url  string
	main events.Ref // the default branch, if the forge says
}

// withDefault notes what a forge says is the default branch, by its short name.
func (repo repository) withDefault(branch string) repository {
	if branch != "" {
		repo.main, _ = events.ParseRef("refs/heads/" + branch)
	}
	return repo
}

// ignore notes why something leads to no event; the first reason stays.
func (r *reader) ignore(why string) {
	if r.d.Ignored == "" {
		r.d.Ignored = why
	}
}

// done returns the delivery. A reason to ignore a part of it does not matter when there is more.
func (r *reader) done() Delivery {
	switch {
	case len(r.d.Events) > 0 || r.d.Ping:
		r.d.Ignored = ""
	case r.d.Ignored == "":
		r.d.Ignored = noRef
	}
	return r.d
}

// repository checks a repository's name and the URL to clone it by. When it returns false, it has noted why.
func (r *reader) repository(name, remote string) (repository, bool) {
	path, err := events.ParseRepoPath(name)
	switch {
	case err != nil:
		r.ignore(noPath)
	case remote == "":
		r.ignore(noURL)
	case events.CheckRemote(remote) != nil:
		r.ignore(badURL)
	case !endsIn(remote, path):
		r.ignore(otherURL)
	case len(r.src.URLs) > 0 && !covers(r.src.URLs, remote):
		r.ignore(notOfSource)
	default:
		return repository{path: path, url: remote}, true
	}
	return repository{}, false
}

// ref adds what became of a ref, by its full name. Before and after are what it named, as far as they are
// commits; an after of zeros says that it is gone.
func (r *reader) ref(repo repository, name, before, after string, deleted bool) {
	ref, err := events.ParseRef(name)
	if err != nil || !isTag(name) && !strings.HasPrefix(name, "refs/heads/") {
		r.ignore(noRef)
		return
	}
	e := Event{Kind: Pushed, Repo: repo.path, URL: repo.url, Ref: ref, Before: commit(before), After: commit(after), Default: repo.main}
	if deleted || isZeros(after) {
		e.Kind, e.After, e.Default = RefDeleted, "", events.Ref{}
	}
	switch n := len(r.d.Events); {
	case n < maxEvents-1:
		r.d.Events = append(r.d.Events, e)
	case n == maxEvents-1:
		r.d.Events = append(r.d.Events, Event{Kind: Pushed, Repo: repo.path, URL: repo.url})
	}
}

// whole adds an event about all of a repository.
func (r *reader) whole(kind EventKind, repo repository) {
	r.d.Events = append(r.d.Events, Event{Kind: kind, Repo: repo.path, URL: repo.url})
}

// defaultChanged adds that branch is the default now; "" if it is not known which.
func (r *reader) defaultChanged(repo repository, branch string) {
	e := Event{Kind: DefaultChanged, Repo: repo.path, URL: repo.url}
	if branch != "" {
		ref, err := events.ParseRef("refs/heads/" + branch)
		if err != nil {
			r.ignore(noRef)
			return
		}
		e.Ref = ref
	}
	r.d.Events = append(r.d.Events, e)
}

// moved adds that a repository, which is name now, was from. Where it was is derived from where it is,
// unless fromURL says so.
func (r *reader) moved(name, remote, from, fromURL string) {
	to, ok := r.repository(name, remote)
	if !ok {
		return
	}
	old, err := events.ParseRepoPath(from)
	switch {
	case err != nil:
		r.ignore(noPath)
		return
	case old.String() == to.path.String():
		r.ignore(noAction)
		return
	case old.Contains(to.path) || to.path.Contains(old):
		r.ignore(movedIntoSelf)
		return
	}
	if fromURL == "" || !endsIn(fromURL, old) {
		fromURL = sibling(to, old)
	}
	was, ok := r.repository(from, fromURL)
	if !ok {
		return
	}
	r.d.Events = append(r.d.Events, Event{Kind: Moved, Repo: to.path, URL: to.url, From: was.path, FromURL: was.url})
}

// decode reads a JSON body, or a part of one, into v. Its error repeats nothing of it.
func (r *reader) decode(body []byte, v any) error {
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("the body is no delivery of %s: a field has another type at byte %d", r.src.Kind, wrong.Offset)
	}
	return fmt.Errorf("the body is no delivery of %s: it is not JSON", r.src.Kind)
}

// commit returns hash in lower case, or "" for what is no commit's.
func commit(hash string) string {
	if len(hash) != 40 && len(hash) != 64 || isZeros(hash) {
		return ""
	}
	hash = strings.ToLower(hash)
	if strings.Trim(hash, "0123456789abcdef") != "" {
		return ""
	}
	return hash
}

// isTag reports whether a ref is a tag. What forges say that it names may be a tag's own hash.
func isTag(ref string) bool { return strings.HasPrefix(ref, "refs/tags/") }

// isZeros reports whether hash is what forges say for no commit.
func isZeros(hash string) bool { return hash != "" && strings.Trim(hash, "0") == "" }
