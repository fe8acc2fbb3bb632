package forge

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
)

// object is a JSON object.
type object = map[string]any

// Compose returns the headers and the body of a delivery as the source's forge sends it, signed with the
// source's first secret. It reports a push of ref, a full name, to the repository at remote or, if remote is
// empty, nothing: receivers answer it, and do nothing. The commit is unknown.
func Compose(src Source, id, remote, ref string, now time.Time) (http.Header, []byte, error) {
	event, content := composePing(src.Kind, id)
	if remote != "" {
		repo, err := events.RepoPathFromURL(remote)
		if err != nil {
			return nil, nil, err
		}
		event, content = composePush(src.Kind, id, repo.String(), remote, ref)
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	f, ok := forges[src.Kind]
	if !ok {
		return nil, nil, fmt.Errorf("source %s: unknown forge", src.Name)
	}
	if len(f.idIn) > 0 {
		header.Set(f.idIn[0], id)
	}
	if len(f.eventIn) > 0 {
		header.Set(f.eventIn[0], event)
	}
	if len(src.Secrets) == 0 {
		return header, body, nil
	}
	return header, body, signAs(src, header, id, body, now)
}

// signAs adds the headers with which the forge authenticates its deliveries.
func signAs(src Source, header http.Header, id string, body []byte, now time.Time) error {
	secret := src.Secrets[0]
	digits := hex.EncodeToString(mac([]byte(secret), body))
	switch src.Kind {
	case GitHub:
		header.Set("X-Hub-Signature-256", "sha256="+digits)
	case Gitea:
		header.Set("X-Gitea-Signature", digits)
	case Forgejo:
		header.Set("X-Forgejo-Signature", digits)
	case BitbucketCloud, BitbucketDC:
		header.Set("X-Hub-Signature", "sha256="+digits)
	case Azure:
		header.Set(azureToken, secret)
	case GitLab, Standard:
		if src.Kind == GitLab && !strings.HasPrefix(secret, "whsec_") { // else a signing token
			header.Set("X-Gitlab-Token", secret)
			return nil
		}
		key, err := standardKey(secret)
		if err != nil {
			return fmt.Errorf("source %s: the text after whsec_ is not base64", src.Name)
		}
		at := strconv.FormatInt(now.Unix(), 10)
		header.Set("Webhook-Id", id)
		header.Set("Webhook-Timestamp", at)
		header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac(key, []byte(id+"."+at+"."), body)))
	}
	return nil
}

// composePing returns the event name and the content of a delivery without effect.
func composePing(kind Kind, id string) (string, object) {
	switch kind {
	case BitbucketCloud, BitbucketDC:
		return "diagnostics:ping", object{"test": true}
	case Azure:
		return "", object{"id": id, "eventType": "lockstep.test"}
	case GitLab:
		return "Test Hook", object{}
	case Standard:
		return "", object{"type": "ping"}
	}
	return "ping", object{}
}

// composePush returns the event name and the content of a push.
func composePush(kind Kind, id, name, remote, ref string) (string, object) {
	switch kind {
	case GitLab:
		return "Push Hook", object{"ref": ref, "project": object{"path_with_namespace": name, "git_http_url": remote}}
	case BitbucketCloud:
		typ, short := "branch", strings.TrimPrefix(ref, "refs/heads/")
		if isTag(ref) {
			typ, short = "tag", strings.TrimPrefix(ref, "refs/tags/")
		}
		return "repo:push", object{"repository": object{"full_name": name},
			"push": object{"changes": []any{object{"new": object{"type": typ, "name": short}}}}}
	case BitbucketDC:
		name = strings.TrimPrefix(name, "scm/")
		key, slug, _ := strings.Cut(name, "/")
		return "repo:refs_changed", object{
			"repository": object{
				"slug": slug, "project": object{"key": key},
				"links": object{"clone": []any{object{"href": remote, "name": "http"}}},
			},
			"changes": []any{object{"ref": object{"id": ref}, "type": "UPDATE"}},
		}
	case Azure:
		return "", object{"id": id, "eventType": "git.push",
			"resource": object{"repository": object{"remoteUrl": remote}, "refUpdates": []any{object{"name": ref}}}}
	case Standard:
		return "", object{"type": string(Pushed), "data": object{"url": remote, "ref": ref}}
	}
	return "push", object{"ref": ref, "repository": object{"full_name": name, "clone_url": remote}}
}
