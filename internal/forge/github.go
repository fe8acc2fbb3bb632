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
	DefaultBranch string `json:"default_branch"`
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
func readGitHub(r *reader, body []byte) error {
	switch r.d.Event {
	case "ping":
		r.d.Ping = true
		return nil
	case "push":
		return r.hubPush(body)
	case "delete":
		return r.hubDelete(body)
	case "repository":
		return r.gitHubRepository(body)
	}
	r.ignore(notOfInterest) // each create comes with a push
	return nil
}

func (r *reader) hubPush(body []byte) error {
	body, err := r.hubBody(body)
	if err != nil {
		return err
	}
	var ref, before, after, head, name, remote, main string
	var deleted bool
	if err := r.decodeFields(body, map[string]any{
		"ref": &ref, "before": &before, "after": &after, "deleted": &deleted, "head_commit.id": &head,
		"repository.full_name": &name, "repository.clone_url": &remote,
		"repository.default_branch": &main,
	}); err != nil {
		return err
	}
	repo, ok := r.repository(name, remote)
	if !ok {
		return nil
	}
	deleted = deleted || isZeros(after)
	if isTag(ref) { // the hash may be the tag object's
		before, after = "", head
	}
	r.ref(repo.withDefault(main), ref, before, after, deleted)
	return nil
}

func (r *reader) hubDelete(body []byte) error {
	var gone hubDelete
	if err := r.decodeHub(body, &gone); err != nil {
		return err
	}
	repo, ok := r.repository(gone.Repository.FullName, gone.Repository.CloneURL)
	if !ok {
		return nil
	}
	switch gone.RefType {
	case "branch":
		r.ref(repo, "refs/heads/"+gone.Ref, "", "", true)
	case "tag":
		r.ref(repo, "refs/tags/"+gone.Ref, "", "", true)
	}
	return nil
}

func (r *reader) gitHubRepository(body []byte) error {
	var done hubAction
	if err := r.decodeHub(body, &done); err != nil {
		return err
	}
	switch done.Action {
	case "renamed", "transferred":
		return r.gitHubMoved(done)
	case "edited":
		return r.gitHubEdited(done)
	case "deleted", "archived":
		kind := map[string]EventKind{"deleted": Removed, "archived": Archived}[done.Action]
		if repo, ok := r.repository(done.Repository.FullName, done.Repository.CloneURL); ok {
			r.whole(kind, repo)
		}
		return nil
	}
	r.ignore(noAction)
	return nil
}

// gitHubMoved decodes a rename, which contains the old name, or a transfer, which contains the old owner.
func (r *reader) gitHubMoved(done hubAction) error {
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
	if err := r.decodePart(done.Changes, &changes); err != nil {
		return err
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
	r.moved(done.Repository.FullName, done.Repository.CloneURL, owner+"/"+name, "")
	return nil
}

func (r *reader) gitHubEdited(done hubAction) error {
	var changes struct {
		DefaultBranch *json.RawMessage `json:"default_branch"`
	}
	if err := r.decodePart(done.Changes, &changes); err != nil {
		return err
	}
	if changes.DefaultBranch == nil {
		r.ignore(noAction)
		return nil
	}
	if repo, ok := r.repository(done.Repository.FullName, done.Repository.CloneURL); ok {
		r.defaultChanged(repo, done.Repository.DefaultBranch)
	}
	return nil
}

// decodeHub decodes a body into v.
func (r *reader) decodeHub(body []byte, v any) error {
	body, err := r.hubBody(body)
	if err != nil {
		return err
	}
	return r.decode(body, v)
}

// hubBody returns the JSON of a body: the whole body or, with GitHub's default content type, the field payload of a
// form.
func (r *reader) hubBody(body []byte) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return body, nil
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, errors.New("the body is not a valid form")
	}
	return []byte(form.Get("payload")), nil
}

// decodePart decodes a part of a body that may be missing.
func (r *reader) decodePart(part json.RawMessage, v any) error {
	if len(part) == 0 {
		return nil
	}
	return r.decode(part, v)
}
