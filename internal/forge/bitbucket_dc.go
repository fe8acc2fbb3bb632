package forge

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
)

// dcRepository is a repository in deliveries of Bitbucket Data Center. Links are often missing.
type dcRepository struct {
	Slug    string `json:"slug"`
	Project struct {
		Key  string `json:"key"`
		Type string `json:"type"`
	} `json:"project"`
	Links struct {
		Clone []dcLink `json:"clone"`
		Self  []dcLink `json:"self"`
	} `json:"links"`
}

type dcLink struct {
	Href string `json:"href"`
	Name string `json:"name"`
}

// IsUnsignedTest reports whether a request is a connection test of Bitbucket Data Center, which does not sign it. It shows
// that the sender reaches us, and nothing else.
func IsUnsignedTest(src Source, header http.Header) bool {
	return src.Kind == BitbucketDC && header.Get("X-Event-Key") == connectionTest && header.Get("X-Hub-Signature") == ""
}

// readBitbucketDC decodes a delivery of Bitbucket Data Center or Server, which do not report removals.
func readBitbucketDC(r *reader, body []byte) {
	switch r.d.Event {
	case connectionTest:
		r.d.Ping = true
	case "repo:refs_changed", "mirror:repo_synchronized":
		r.dcPush(body)
	case "repo:modified":
		r.dcModified(body)
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) dcPush(body []byte) {
	var push struct {
		Repository dcRepository `json:"repository"`
		Changes    []struct {
			Ref struct {
				ID string `json:"id"`
			} `json:"ref"`
			FromHash string `json:"fromHash"`
			ToHash   string `json:"toHash"`
			Type     string `json:"type"`
		} `json:"changes"`
		IsTruncated bool `json:"refLimitExceeded"` // of a mirror: no changes are given
	}
	if !r.decode(body, &push) {
		return
	}
	repo, ok := r.dcRepository(push.Repository)
	if !ok {
		return
	}
	if push.IsTruncated {
		r.whole(Pushed, repo)
	}
	for _, change := range push.Changes {
		r.object(repo, change.Ref.ID, change.FromHash, change.ToHash, change.Type == "DELETE")
	}
}

func (r *reader) dcModified(body []byte) {
	var modified struct {
		Old dcRepository `json:"old"`
		New dcRepository `json:"new"`
	}
	if !r.decode(body, &modified) {
		return
	}
	if repo, ok := r.dcRepository(modified.New); ok {
		modified.Old.Links = modified.New.Links // the server is the same
		r.moved(repo, modified.Old.name(), r.dcURL(modified.Old))
	}
}

// name returns the project's key and the repository's slug. The keys of personal projects begin with "~".
func (d dcRepository) name() string {
	key := d.Project.Key
	if d.Project.Type == "PERSONAL" && !strings.HasPrefix(key, "~") {
		key = "~" + key
	}
	return key + "/" + d.Slug
}

// dcRepository validates a repository, given by its built clone URL and by its links for SSH.
func (r *reader) dcRepository(repo dcRepository) (repository, bool) {
	remotes := []string{r.dcURL(repo)}
	for _, link := range repo.Links.Clone {
		if link.Name == "ssh" {
			remotes = append(remotes, link.Href)
		}
	}
	return r.repository(repo.name(), remotes...)
}

// dcURL returns the clone URL. Like Bitbucket, it builds the path from the key and the slug in lower case. It takes the
// server from a link if there is one, otherwise from the source's urls.
func (r *reader) dcURL(repo dcRepository) string {
	base := ""
	for _, link := range append(repo.Links.Clone, repo.Links.Self...) {
		base = cmp.Or(base, dcBase(link.Href))
	}
	if base == "" && r.src.server() != "" {
		base = dcBase(r.src.URLs[0])
	}
	if base == "" {
		return ""
	}
	return base + "/scm/" + strings.ToLower(repo.name()) + ".git"
}

// dcBase returns the server and context path of an HTTP link.
func dcBase(link string) string {
	host := server(link)
	u, err := url.Parse(link)
	if host == "" || err != nil {
		return ""
	}
	path := u.EscapedPath() + "/"
	under := len(path)
	for _, mark := range []string{"/scm/", "/projects/", "/users/"} {
		if at := strings.Index(path, mark); at >= 0 {
			under = min(under, at)
		}
	}
	return host + strings.TrimRight(path[:under], "/")
}
