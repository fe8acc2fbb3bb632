package forge

import (
	"cmp"
	"net/http"
	"time"
)

// labProject is a project in push deliveries.
type labProject struct {
	PathWithNamespace string `json:"path_with_namespace"`
	GitHTTPURL        string `json:"git_http_url"`
	GitSSHURL         string `json:"git_ssh_url"`
	WebURL            string `json:"web_url"`
	DefaultBranch     string `json:"default_branch"`
}

// verifyGitLab verifies a delivery by its signature if it has one, else by its token.
func verifyGitLab(src Source, header http.Header, body []byte, now time.Time) error {
	if header.Get("Webhook-Signature") != "" {
		return verifyStandard(src, header, body, now)
	}
	return verifyToken(src, "X-Gitlab-Token", header.Get("X-Gitlab-Token"))
}

// readGitLab decodes a delivery of a project, group or system hook. Its ID is the Idempotency-Key, which older versions
// do not send. X-Gitlab-Event-UUID is no substitute: all deliveries caused by one push share it.
func readGitLab(r *reader, body []byte) {
	switch r.d.Event {
	case "Push Hook", "Tag Push Hook":
		r.labPush(body)
	case "System Hook", "Project Hook":
		r.labSystem(body)
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) labSystem(body []byte) {
	var hook struct {
		EventName string `json:"event_name"`
	}
	if !r.decode(body, &hook) {
		return
	}
	r.d.Event = cmp.Or(eventName(hook.EventName), r.d.Event)
	switch hook.EventName {
	case "push", "tag_push":
		r.labPush(body)
	case "repository_update":
		r.labUpdate(body)
	case "project_destroy", "project_rename", "project_transfer", "project_update":
		r.labProject(hook.EventName, body)
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) labPush(body []byte) {
	var push struct {
		Ref         string     `json:"ref"`
		Before      string     `json:"before"`
		After       string     `json:"after"`
		CheckoutSHA string     `json:"checkout_sha"`
		Project     labProject `json:"project"`
	}
	if !r.decode(body, &push) {
		return
	}
	repo, ok := r.labRepository(push.Project)
	if !ok {
		return
	}
	deleted := isZeros(push.After)
	if isTag(push.Ref) { // the hash may be the tag object's
		push.Before, push.After = "", push.CheckoutSHA
	}
	r.ref(repo.withDefault(push.Project.DefaultBranch), push.Ref, push.Before, push.After, deleted)
}

// labUpdate decodes the summary sent once per push, even for pushes with too many refs to send an event for each.
func (r *reader) labUpdate(body []byte) {
	var update struct {
		Project labProject `json:"project"`
		Changes []struct {
			Ref    string `json:"ref"`
			Before string `json:"before"`
			After  string `json:"after"`
		} `json:"changes"`
	}
	if !r.decode(body, &update) {
		return
	}
	repo, ok := r.labRepository(update.Project)
	if !ok {
		return
	}
	for _, change := range update.Changes {
		r.object(repo.withDefault(update.Project.DefaultBranch), change.Ref, change.Before, change.After, false)
	}
}

// labProject decodes an event about a whole project. Such events contain no URL.
func (r *reader) labProject(event string, body []byte) {
	var project struct {
		PathWithNamespace    string `json:"path_with_namespace"`
		OldPathWithNamespace string `json:"old_path_with_namespace"`
	}
	if !r.decode(body, &project) {
		return
	}
	repo, ok := r.labRepository(labProject{PathWithNamespace: project.PathWithNamespace})
	switch {
	case !ok:
	case event == "project_rename" || event == "project_transfer":
		r.moved(repo, project.OldPathWithNamespace, "")
	case event == "project_destroy":
		r.whole(Removed, repo)
	default:
		r.defaultChanged(repo, "") // project_update does not say what changed
	}
}

func (r *reader) labRepository(project labProject) (repository, bool) {
	return r.repository(project.PathWithNamespace, r.labURL(project), project.GitSSHURL)
}

// labURL returns the clone URL of a project. If the event contains none, it takes the server from a header, which older
// versions do not send, or from the source's urls.
func (r *reader) labURL(project labProject) string {
	switch {
	case project.GitHTTPURL != "":
		return project.GitHTTPURL
	case project.WebURL != "":
		return project.WebURL + ".git"
	}
	host := cmp.Or(server(r.header.Get("X-Gitlab-Instance")), r.src.server())
	if host == "" {
		return ""
	}
	return host + "/" + project.PathWithNamespace + ".git"
}
