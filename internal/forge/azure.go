package forge

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep/events"
)

// azureEvent is a service hook delivery of Azure DevOps. It has no signature and no custom headers.
type azureEvent struct {
	ID       string          `json:"id"`
	Type     string          `json:"eventType"`
	Resource json.RawMessage `json:"resource"` // null if the subscription sends no details
}

// azureRepository is a repository in deliveries of Azure DevOps.
type azureRepository struct {
	RemoteURL     string `json:"remoteUrl"` // may name a user
	DefaultBranch string `json:"defaultBranch"`
}

// azureToken is the header for a secret that is configured as an HTTP header of the subscription.
const azureToken = "X-Lockstep-Token"

// verifyAzure verifies a delivery by its Basic password, whose user name is ignored, or by a header.
func verifyAzure(src Source, header http.Header, _ []byte, _ time.Time) error {
	req := http.Request{Header: header}
	if _, password, ok := req.BasicAuth(); ok {
		return verifyToken(src, "Basic password", password)
	}
	return verifyToken(src, azureToken, header.Get(azureToken))
}

// readAzure decodes a delivery of Azure DevOps. Each change of a branch or tag is a push.
func readAzure(r *reader, body []byte) {
	var doc azureEvent
	if !r.decode(body, &doc) {
		return
	}
	r.d.ID, r.d.Event = deliveryID(doc.ID), eventName(doc.Type)
	if len(doc.Resource) == 0 {
		doc.Resource = json.RawMessage("null")
	}
	switch doc.Type {
	case "git.push":
		r.azurePush(doc.Resource)
	case "git.repo.renamed":
		r.azureRenamed(doc.Resource)
	case "git.repo.deleted":
		r.azureDeleted(doc.Resource)
	case "git.repo.created", "git.repo.forked", "git.repo.statuschanged":
		r.ignore(noAction) // the first push follows
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) azurePush(resource []byte) {
	var push struct {
		Repository azureRepository `json:"repository"`
		Updates    []struct {
			Name string `json:"name"`
			Old  string `json:"oldObjectId"`
			New  string `json:"newObjectId"`
		} `json:"refUpdates"`
	}
	if !r.decode(resource, &push) {
		return
	}
	repo, ok := r.azureRepository(push.Repository.RemoteURL)
	if !ok {
		return
	}
	repo = repo.withDefault(strings.TrimPrefix(push.Repository.DefaultBranch, "refs/heads/"))
	if push.Updates == nil { // the subscription sends minimal details
		r.whole(Pushed, repo)
	}
	for _, update := range push.Updates {
		r.object(repo, update.Name, update.Old, update.New, false)
	}
}

func (r *reader) azureRenamed(resource []byte) {
	var renamed struct {
		OldName    string          `json:"oldName"`
		NewName    string          `json:"newName"`
		Repository azureRepository `json:"repository"`
	}
	if !r.decode(resource, &renamed) {
		return
	}
	remote := azureURL(renamed.Repository.RemoteURL)
	i := strings.LastIndexByte(remote, '/')
	if name, err := url.PathUnescape(remote[i+1:]); err != nil || !strings.EqualFold(name, renamed.NewName) {
		r.ignore(otherURL) // renamed again since
		return
	}
	from := remote[:i+1] + url.PathEscape(renamed.OldName)
	if to, ok := r.azureRepository(remote); ok {
		r.moved(to, azureName(from), from)
	}
}

// azureDeleted decodes a removal, which contains the names but not the clone URL.
func (r *reader) azureDeleted(resource []byte) {
	var deleted struct {
		Name    string `json:"repositoryName"`
		Project struct {
			Name string `json:"name"`
			URL  string `json:"url"` // {collection}/_apis/projects/{id}
		} `json:"project"`
	}
	if !r.decode(resource, &deleted) {
		return
	}
	collection, _, ok := strings.Cut(azureURL(deleted.Project.URL), "/_apis/")
	if !ok {
		r.ignore(noURL)
		return
	}
	name := "/_git/" + url.PathEscape(deleted.Name)
	remotes := []string{collection + "/" + url.PathEscape(deleted.Project.Name) + name}
	if deleted.Project.Name == deleted.Name { // then the clone URL may omit the project
		remotes = append(remotes, collection+name)
	}
	for _, remote := range remotes {
		if repo, ok := r.azureRepository(remote); ok {
			r.whole(Removed, repo)
		}
	}
}

// azureRepository validates a repository, given by its clone URL, which stands for all that it has.
func (r *reader) azureRepository(remote string) (repository, bool) {
	remote = azureURL(remote)
	return r.repository(azureName(remote), remote)
}

// azureURL returns a URL without the user name that Azure DevOps puts into clone URLs, or "".
func azureURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || text == "" {
		return ""
	}
	u.User = nil
	return u.String()
}

// azureName returns the repository's name: the path of its URL or, if that is not a valid path, the URL.
func azureName(remote string) string {
	path, err := events.RepoPathFromURL(remote)
	if err != nil {
		return remote
	}
	return path.String()
}
