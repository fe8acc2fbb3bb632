package wire

import (
	"errors"
	"net/http"
	"regexp"

	"lockstep/internal/git"
	"lockstep/internal/git/object"
)

// ResolveCommit returns the tip that publishes commit for ref, which is that commit itself, a name that the
// remote has, or zero for the default branch. It prefers a listed ref at the commit. Without one it fails if
// the server does not offer to send commits by their hash.
func (r *Session) ResolveCommit(ref string, commit object.ID) (Tip, error) {
	tip := Tip{Ref: ref}
	if !object.IsID(ref) {
		var err error
		if tip, err = r.Resolve(ref); err != nil {
			return Tip{}, err
		}
	}
	if commit.Format() != r.refs.format {
		return Tip{}, git.Errorf(git.Permanent, git.ClassNoRef,
			"commit %s has %d digits, but the repository at %s has object format %s; check the hash: it needs %d digits",
			commit, 2*commit.Format().Size(), r.host, r.refs.format, 2*r.refs.format.Size())
	}
	tip.Want, tip.Commit = commit, commit
	switch want, ok := r.refAt(commit); {
	case ok:
		tip.Want = want
	case r.sendsUnadvertised():
		tip.ByHash = true
	default:
		return Tip{}, git.Errorf(git.Permanent, git.ClassNoRef,
			"no ref at %s is at commit %s, and the server sends no other commits; name a branch or tag at that commit, "+
				"or set uploadpack.allowReachableSHA1InWant on the server", r.host, commit)
	}
	return tip, nil
}

// refAt returns the object to request for a commit that a ref points to, which may be an annotated tag.
func (r *Session) refAt(commit object.ID) (want object.ID, ok bool) {
	if r.refs.head == commit {
		return commit, true
	}
	for name, hash := range r.refs.refs {
		if hash == commit {
			return hash, true
		}
		if r.refs.peeled[name] == commit {
			want, ok = hash, true
		}
	}
	return want, ok
}

// sendsUnadvertised reports whether the server may send a commit that no listed ref points to, which those of
// protocol 2 do. Like Git, it makes no difference between the capabilities: some servers send reachable
// commits although they offer only tips.
func (r *Session) sendsUnadvertised() bool {
	return r.offered != nil || r.refs.capabilities.has("allow-tip-sha1-in-want") ||
		r.refs.capabilities.has("allow-reachable-sha1-in-want")
}

// Messages of Git, JGit, go-git, Dulwich and Azure DevOps.
var noCommitText = regexp.MustCompile(`(?i)not our ref|unadvertised object|want \S+ (is )?not valid|invalid object|` +
	`\bobject\b.*(not found|not exist|missing)`)

// refusesCommit reports whether err means that the server refuses to send a commit by its hash. The list of refs, which
// it has sent before, shows that the repository exists.
func (r *Session) refusesCommit(err error) bool {
	if status, ok := errors.AsType[statusError](r.wire.firstError()); ok {
		return status.code == http.StatusBadRequest || status.code == http.StatusNotFound
	}
	line, _ := errors.AsType[errorLine](err)
	return noCommitText.MatchString(string(line))
}

func (r *Session) noCommit(commit object.ID) error {
	return git.Errorf(git.Permanent, git.ClassNoRef,
		"%s does not send commit %s: it has no such commit, or none that a branch or tag contains; check the hash, "+
			"or push a branch or tag that contains it",
		r.host, commit)
}
