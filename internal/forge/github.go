package forge

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// hubRepository is a repository in deliveries of GitHub, Gitea and Forgejo.
type hubRepository struct {
	FullName      string `json:"full_name"`
	CloneURL      string `json:"clone_url"`
	SSHURL        string `json:"ssh_url"`
	DefaultBranch string `json:"default_branch"`
}

// hubPush reports a push to a branch or tag, by its full name.
type hubPush struct {
	Ref        string `json:"ref"`
	Before     string `json:"before"`
	After      string `json:"after"`
	Deleted    bool   `json:"deleted"`
	HeadCommit struct {
		ID string `json:"id"`
	} `json:"head_commit"`
	Repository hubRepository `json:"repository"`
}

// hubDelete reports a deleted branch or tag, by its short name.
type hubDelete struct {
	Ref        string        `json:"ref"`
	RefType    string        `json:"ref_type"`
	Repository hubRepository `json:"repository"`
}

// hubAction reports an action on a repository.
type hubAction struct {
	Action     string          `json:"action"`
	Repository hubRepository   `json:"repository"`
	Changes    json.RawMessage `json:"changes"`
}

func verifyGitHub(src Source, header http.Header, body []byte, _ time.Time) error {
	return verifyHex(src, "X-Hub-Signature-256", header.Get("X-Hub-Signature-256"), "sha256=", body)
}

// readGitHub decodes a delivery of GitHub.
func readGitHub(r *reader, body []byte) {
	switch r.d.Event {
	case "ping":
		r.d.Ping = true
	case "push":
		r.hubPush(body)
	case "delete":
		r.hubDelete(body)
	case "repository":
		r.gitHubRepository(body)
	default:
		r.ignore(notOfInterest) // each create comes with a push
	}
}

func (r *reader) hubPush(body []byte) {
	var push hubPush
	if !r.decodeHub(body, &push) {
		return
	}
	repo, ok := r.hubRepository(push.Repository)
	if !ok {
		return
	}
	deleted := push.Deleted || isZeros(push.After)
	if isTag(push.Ref) { // the hash may be the tag object's
		push.Before, push.After = "", push.HeadCommit.ID
	}
	r.ref(repo.withDefault(push.Repository.DefaultBranch), push.Ref, push.Before, push.After, deleted)
}

func (r *reader) hubRepository(repo hubRepository) (repository, bool) {
	return r.repository(repo.FullName, repo.CloneURL, repo.SSHURL)
}

func (r *reader) hubDelete(body []byte) {
	var gone hubDelete
	if !r.decodeHub(body, &gone) {
		return
	}
	repo, ok := r.hubRepository(gone.Repository)
	if !ok {
		return
	}
	switch gone.RefType {
	case "branch":
		r.ref(repo, "refs/heads/"+gone.Ref, "", "", true)
	case "tag":
		r.ref(repo, "refs/tags/"+gone.Ref, "", "", true)
	}
}

func (r *reader) gitHubRepository(body []byte) {
	var done hubAction
	if !r.decodeHub(body, &done) {
		return
	}
	switch done.Action {
	case "renamed", "transferred":
		r.gitHubMoved(done)
	case "edited":
		r.gitHubEdited(done)
	case "deleted", "archived":
		kind := map[string]EventKind{"deleted": Removed, "archived": Archived}[done.Action]
		if repo, ok := r.hubRepository(done.Repository); ok {
			r.whole(kind, repo)
		}
	default:
		r.ignore(noAction)
	}
}

// gitHubMoved decodes a rename, which contains the old name, or a transfer, which contains the old owner.
func (r *reader) gitHubMoved(done hubAction) {
	type login struct {
		Login string `json:"login"`
	}
	var changes struct {
		Repository struct {
			Name struct {
				From string `json:"from"`
			} `json:"name"`
		} `json:"repository"`
		Owner struct {
			From struct {
				User         login `json:"user"`
				Organization login `json:"organization"`
			} `json:"from"`
		} `json:"owner"`
	}
	if !r.decodePart(done.Changes, &changes) {
		return
	}
	owner, name, _ := strings.Cut(done.Repository.FullName, "/")
	if was := changes.Repository.Name.From; was != "" {
		name = was
	}
	switch from := changes.Owner.From; {
	case from.User.Login != "":
		owner = from.User.Login
	case from.Organization.Login != "":
		owner = from.Organization.Login
	}
	if repo, ok := r.hubRepository(done.Repository); ok {
		r.moved(repo, owner+"/"+name, "")
	}
}

func (r *reader) gitHubEdited(done hubAction) {
	var changes struct {
		DefaultBranch *json.RawMessage `json:"default_branch"`
	}
	if !r.decodePart(done.Changes, &changes) {
		return
	}
	if changes.DefaultBranch == nil {
		r.ignore(noAction)
		return
	}
	if repo, ok := r.hubRepository(done.Repository); ok {
		r.defaultChanged(repo, done.Repository.DefaultBranch)
	}
}

// decodeHub is decode of the whole body or, with GitHub's default content type, of the field payload of a form.
func (r *reader) decodeHub(body []byte, v any) bool {
	kind, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return r.decode(body, v)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		r.err = errors.New("the body is not a valid form")
		return false
	}
	return r.decode([]byte(form.Get("payload")), v)
}

// decodePart is decode of a part of a body that may be missing.
func (r *reader) decodePart(part json.RawMessage, v any) bool {
	return len(part) == 0 || r.decode(part, v)
}
