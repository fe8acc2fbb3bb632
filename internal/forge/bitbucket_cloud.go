package forge

import (
	"cmp"
	"net/http"
	"time"
)

// bitbucketCloud is the prefix of all repository URLs; deliveries do not contain it.
const bitbucketCloud = "https://bitbucket.org/"

// connectionTest is the event of a test of a webhook.
const connectionTest = "diagnostics:ping"

// verifyBitbucket verifies a delivery of Bitbucket. Its SHA-256 signature is in the header that other forges use for
// SHA-1.
func verifyBitbucket(src Source, header http.Header, body []byte, _ time.Time) error {
	return verifyHex(src, "X-Hub-Signature", header.Get("X-Hub-Signature"), "sha256=", body)
}

type cloudRepository struct {
	FullName string `json:"full_name"`
}

// cloudRef is the old or new state of a ref; nil if there is none.
type cloudRef struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Target struct {
		Hash string `json:"hash"`
	} `json:"target"`
}

// readBitbucketCloud decodes a delivery of Bitbucket Cloud.
func readBitbucketCloud(r *reader, body []byte) {
	switch r.d.Event {
	case connectionTest:
		r.d.Ping = true
	case "repo:push":
		r.cloudPush(body)
	case "repo:updated", "repo:transfer":
		r.cloudMoved(body)
	case "repo:deleted":
		r.cloudDeleted(body)
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) cloudPush(body []byte) {
	var push struct {
		Repository cloudRepository `json:"repository"`
		Push       struct {
			Changes []struct {
				Old *cloudRef `json:"old"`
				New *cloudRef `json:"new"`
			} `json:"changes"`
		} `json:"push"`
	}
	if !r.decode(body, &push) {
		return
	}
	repo, ok := r.repository(push.Repository.FullName, cloudURL(push.Repository.FullName))
	if !ok {
		return
	}
	for _, change := range push.Push.Changes {
		named := cmp.Or(change.New, change.Old)
		if named == nil {
			continue
		}
		var before, after string
		if change.Old != nil {
			before = change.Old.Target.Hash
		}
		if change.New != nil {
			after = change.New.Target.Hash
		}
		r.ref(repo, named.ref(), before, after, change.New == nil)
	}
}

// ref returns the full name, or "" if it is neither a branch nor a tag.
func (c cloudRef) ref() string {
	switch c.Type {
	case "branch", "named_branch":
		return "refs/heads/" + c.Name
	case "tag", "annotated_tag":
		return "refs/tags/" + c.Name
	}
	return ""
}

// cloudMoved decodes a rename or transfer of a repository. Some updates and transfers do not contain the old name.
func (r *reader) cloudMoved(body []byte) {
	var updated struct {
		Changes struct {
			FullName struct {
				Old string `json:"old"`
				New string `json:"new"`
			} `json:"full_name"`
		} `json:"changes"`
	}
	if !r.decode(body, &updated) {
		return
	}
	name := updated.Changes.FullName
	if name.Old == "" || name.New == "" {
		r.ignore(noAction)
		return
	}
	if repo, ok := r.repository(name.New, cloudURL(name.New)); ok {
		r.moved(repo, name.Old, cloudURL(name.Old))
	}
}

func (r *reader) cloudDeleted(body []byte) {
	var deleted struct {
		Repository cloudRepository `json:"repository"`
	}
	if !r.decode(body, &deleted) {
		return
	}
	if repo, ok := r.repository(deleted.Repository.FullName, cloudURL(deleted.Repository.FullName)); ok {
		r.whole(Removed, repo)
	}
}

func cloudURL(name string) string { return bitbucketCloud + name + ".git" }
