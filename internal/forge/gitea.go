package forge

import (
	"net/http"
	"time"
)

// verifyGitea verifies a delivery of Gitea or Forgejo by the first signature header that is present.
func verifyGitea(src Source, header http.Header, body []byte, now time.Time) error {
	for _, name := range []string{"X-Forgejo-Signature", "X-Gitea-Signature"} {
		if signature := header.Get(name); signature != "" {
			return verifyHex(src, name, signature, "", body)
		}
	}
	return verifyGitHub(src, header, body, now)
}

// readGitea decodes a delivery of Gitea or Forgejo. They send "delete" for a deleted branch, "delete" and "push" for a
// deleted tag, and nothing for a rename. Each "create" comes with a "push", so it is ignored.
func readGitea(r *reader, body []byte) {
	switch r.d.Event {
	case "push":
		r.hubPush(body)
	case "delete":
		r.hubDelete(body)
	case "repository":
		r.giteaRepository(body)
	default:
		r.ignore(notOfInterest)
	}
}

func (r *reader) giteaRepository(body []byte) {
	var done hubAction
	if !r.decodeHub(body, &done) {
		return
	}
	if done.Action != "deleted" {
		r.ignore(noAction)
		return
	}
	if repo, ok := r.hubRepository(done.Repository); ok {
		r.whole(Removed, repo)
	}
}
