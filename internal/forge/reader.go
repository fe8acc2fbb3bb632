package forge

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"lockstep/events"
)

// maxEvents is the maximum number of events of a delivery. If it has more refs, the first 999 get an event each,
// followed by one with the zero Ref; polls find the others.
const maxEvents = 1000

// Why a delivery has no events.
const (
	notOfInterest = "event type not of interest"
	noAction      = "nothing that a clone depends on has changed"
	noRef         = "no branch or tag that can be watched has changed"
	noPath        = "the repository's name is not a valid path"
	noURL         = "the delivery does not contain the repository's URL"
	badURL        = "the repository's URL is not a valid clone URL"
	otherURL      = "the repository's URL does not end in its name"
	notOfSource   = "the repository's URL is not among this source's urls"
	movedIntoSelf = "the new path is above or below the old one"
)

// reader decodes a delivery.
type reader struct {
	src    Source
	header http.Header
	d      Delivery
	err    error // why the body cannot be decoded
}

// repository has a validated name and validated URLs.
type repository struct {
	path events.RepoPath // zero if the name is not a valid path
	urls []string        // at least one
	main events.Ref      // the default branch, if known
}

// withDefault sets the default branch, by its short name.
func (repo repository) withDefault(branch string) repository {
	if branch != "" {
		repo.main, _ = events.ParseRef("refs/heads/" + branch)
	}
	return repo
}

// ignore records why a part of the delivery causes no event. It keeps the first reason.
func (r *reader) ignore(why string) {
	if r.d.Ignored == "" {
		r.d.Ignored = why
	}
}

// done returns the delivery. If there are events, it drops the reason.
func (r *reader) done() Delivery {
	switch {
	case len(r.d.Events) > 0 || r.d.Ping:
		r.d.Ignored = ""
	case r.d.Ignored == "":
		r.d.Ignored = noRef
	}
	return r.d
}

// repository validates a repository's name and clone URLs, of which the delivery may lack some. If none is valid, it
// records why the first is not, and returns false. A name that is not a valid path is no error: a watch may have the
// repository at another path.
func (r *reader) repository(name string, remotes ...string) (repository, bool) {
	repo := repository{}
	repo.path, _ = events.ParseRepoPath(name)
	why := ""
	for _, remote := range remotes {
		remote = events.RemoteURL(remote)
		switch {
		case remote == "":
		case events.CheckRemote(remote) != nil:
			why = cmp.Or(why, badURL)
		case !repo.path.IsZero() && !endsIn(remote, repo.path):
			why = cmp.Or(why, otherURL)
		case len(r.src.URLs) > 0 && !covers(r.src.URLs, remote):
			why = cmp.Or(why, notOfSource)
		case !slices.Contains(repo.urls, remote):
			repo.urls = append(repo.urls, remote)
		}
	}
	switch {
	case len(repo.urls) == 0:
		r.ignore(cmp.Or(why, noURL))
	case name == "":
		r.ignore(noPath)
	default:
		return repo, true
	}
	return repository{}, false
}

// ref adds an event for a ref, given by its full name. Before and after are dropped unless they are commit hashes; an
// after of zeros means that the ref was deleted.
func (r *reader) ref(repo repository, name, before, after string, deleted bool) {
	ref, err := events.ParseRef(name)
	if err != nil || !isTag(name) && !strings.HasPrefix(name, "refs/heads/") {
		r.ignore(noRef)
		return
	}
	e := Event{
		Kind: Pushed, Repo: repo.path, URLs: repo.urls, Ref: ref, Before: commit(before), After: commit(after),
		Default: repo.main,
	}
	if deleted || isZeros(after) {
		e.Kind, e.After, e.Default = RefDeleted, "", events.Ref{}
	}
	switch n := len(r.d.Events); {
	case n < maxEvents-1:
		r.d.Events = append(r.d.Events, e)
	case n == maxEvents-1:
		r.d.Events = append(r.d.Events, Event{Kind: Pushed, Repo: repo.path, URLs: repo.urls})
	}
}

// object is ref with the hashes of objects, which of a tag may be no commits.
func (r *reader) object(repo repository, name, before, after string, deleted bool) {
	deleted = deleted || isZeros(after)
	if isTag(name) {
		before, after = "", ""
	}
	r.ref(repo, name, before, after, deleted)
}

// whole adds an event about the whole repository.
func (r *reader) whole(kind EventKind, repo repository) {
	r.d.Events = append(r.d.Events, Event{Kind: kind, Repo: repo.path, URLs: repo.urls})
}

// defaultChanged adds an event for a new default branch. branch is "" if the delivery does not name it.
func (r *reader) defaultChanged(repo repository, branch string) {
	e := Event{Kind: DefaultChanged, Repo: repo.path, URLs: repo.urls}
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

// moved adds the event of a repository whose old name is from. It derives the old URLs from the new ones if fromURL is
// empty or does not end in the old name.
func (r *reader) moved(to repository, from, fromURL string) {
	old, err := events.ParseRepoPath(from)
	isPath := err == nil && !to.path.IsZero()
	switch {
	case !isPath && fromURL == "":
		r.ignore(noPath)
		return
	case isPath && old.String() == to.path.String():
		r.ignore(noAction)
		return
	case isPath && (old.Contains(to.path) || to.path.Contains(old)):
		r.ignore(movedIntoSelf)
		return
	}
	remotes := []string{fromURL}
	if isPath && !endsIn(fromURL, old) {
		remotes = nil
		for _, remote := range to.urls {
			remotes = append(remotes, sibling(remote, to.path, old))
		}
	}
	if was, ok := r.repository(from, remotes...); ok && slices.Equal(was.urls, to.urls) {
		r.ignore(noAction)
	} else if ok {
		r.d.Events = append(r.d.Events, Event{Kind: Moved, Repo: to.path, URLs: to.urls, From: was.path, FromURLs: was.urls})
	}
}

// decode decodes a JSON body, or a part of one, into v. If it returns false, the error of r says why, without a quote.
func (r *reader) decode(body []byte, v any) bool {
	err := json.Unmarshal(body, v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		r.err = fmt.Errorf("invalid %s delivery: a field has the wrong type at byte %d", r.src.Kind, wrong.Offset)
	} else if err != nil {
		r.err = fmt.Errorf("invalid %s delivery: it is not JSON", r.src.Kind)
	}
	return err == nil
}

// commit returns hash in lower case, or "" if it is not a commit hash.
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

// isTag reports whether a ref is a tag. For a tag, forges may send the hash of the tag object.
func isTag(ref string) bool { return strings.HasPrefix(ref, "refs/tags/") }

// isZeros reports whether hash is the all-zero hash, which means that there is no commit.
func isZeros(hash string) bool { return hash != "" && strings.Trim(hash, "0") == "" }
