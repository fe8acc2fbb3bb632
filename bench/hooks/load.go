package hooks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
)

// Load is a set of webhooks, one for each repository. Each delivery gets a unique ID, which the signature does not cover.
type Load struct {
	urls      []string
	requests  [][]byte // with idPlaceholder
	bodyBytes int
}

// idPlaceholder has the length of a delivery ID.
const idPlaceholder = "00000000-0000-0000-0000-000000000000"

func newLoad(repos int, secret string) (*Load, error) {
	l := &Load{}
	for i := range repos {
		name := fmt.Sprintf("bench/repo-%03d", i)
		url := "https://github.example.com/" + name + ".git"
		body, err := PushBody(name, url, strings.Repeat("0", 40), fmt.Sprintf("%040x", i+1))
		if err != nil {
			return nil, err
		}
		l.urls, l.bodyBytes = append(l.urls, url), len(body)
		l.requests = append(l.requests, PushRequest(body, secret, idPlaceholder))
	}
	return l, nil
}

// PushBody returns the body of a push of one commit to main, about as long as GitHub's.
func PushBody(name, url, before, after string) ([]byte, error) {
	api := "https://api.github.example.com/repos/" + name
	repository := map[string]any{
		"id": 1296269, "node_id": "MDEwOlJlcG9zaXRvcnkxMjk2MjY5", "name": name[strings.LastIndexByte(name, '/')+1:], "full_name": name,
		"private": false, "description": "A repository to measure with", "fork": false, "clone_url": url, "default_branch": "main",
		"created_at": 1296068472, "pushed_at": 1795223511, "size": 108, "language": "Go", "archived": false, "visibility": "public",
	}
	for _, part := range strings.Fields("archive assignees blobs branches collaborators comments commits compare contents contributors " +
		"deployments downloads events forks git_commits git_refs git_tags hooks issue_comment issue_events issues keys labels languages merges " +
		"milestones notifications pulls releases stargazers statuses subscribers subscription tags teams trees git ssh mirror svn") {
		repository[part+"_url"] = api + "/" + part + "{/sha}"
	}
	person := map[string]any{"name": "Mona Lisa Octocat", "email": "mona@example.com", "username": "mona"}
	commit := func(id string) map[string]any {
		return map[string]any{
			"id": id, "tree_id": id, "distinct": true, "message": "Change what is measured\n\n" + strings.Repeat("It takes a few words to say why. ", 12),
			"timestamp": "2026-11-21T18:11:51+01:00", "url": api + "/commit/" + id, "author": person, "committer": person,
			"added": []string{"docs/new.md"}, "removed": []string{}, "modified": []string{"src/main.go", "src/main_test.go", "README.md"},
		}
	}
	return json.Marshal(map[string]any{
		"ref": "refs/heads/main", "before": before, "after": after, "created": false, "deleted": false, "forced": false,
		"compare": api + "/compare/" + before + "..." + after, "commits": []any{commit(after), commit(before)}, "head_commit": commit(after),
		"repository": repository, "pusher": person,
		"sender": map[string]any{"login": "mona", "id": 1, "avatar_url": api + "/avatar", "type": "User", "site_admin": false},
	})
}

// PushRequest returns the signed HTTP request of a push to the source hub.
func PushRequest(body []byte, secret, id string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /hooks/hub HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/bench\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\nX-GitHub-Event: push\r\nX-GitHub-Delivery: %s\r\nX-Hub-Signature-256: sha256=%s\r\n\r\n",
		len(body), id, hex.EncodeToString(mac.Sum(nil)))
	b.Write(body)
	return b.Bytes()
}

// Send sends deliveries over several connections, and returns the latencies of those that begin after the warm-up and end in
// time.
func (l *Load) Send(ctx context.Context, addr string, connections int, during time.Duration) ([]time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	from := time.Now().Add(rig.WarmUp)
	to := from.Add(during)
	each := make([][]time.Duration, connections)
	for i := range connections {
		g.Go(func() error {
			c, err := Dial(ctx, addr)
			if err != nil {
				return err
			}
			defer c.Close()
			requests := make([][]byte, len(l.requests)) // a copy, to write IDs into
			for n, request := range l.requests {
				requests[n] = bytes.Clone(request)
			}
			for n := i; time.Now().Before(to) && ctx.Err() == nil; n++ {
				request := requests[n%len(requests)]
				copy(request[bytes.Index(request, []byte(idHeader))+len(idHeader):], uuid.NewString())
				began := time.Now()
				status, answer, err := c.Send(request)
				if err != nil {
					return err
				}
				if status != 202 {
					return fmt.Errorf("delivery answered with %d %s", status, answer)
				}
				if ended := time.Now(); began.After(from) && ended.Before(to) {
					each[i] = append(each[i], ended.Sub(began))
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(each...), nil
}

const idHeader = "X-GitHub-Delivery: "

// Conn is a minimal HTTP client on one connection to a receiver, so that it uses little CPU time.
type Conn struct {
	conn net.Conn
	from *bufio.Reader
	stop func() bool
}

// Dial connects to a receiver. The connection closes when ctx ends.
func Dial(ctx context.Context, addr string) (*Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn, from: bufio.NewReader(conn), stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

// Close closes the connection.
func (c *Conn) Close() {
	c.stop()
	_ = c.conn.Close()
}

// Send sends a request and returns the status and the body of the response.
func (c *Conn) Send(request []byte) (status int, body []byte, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return 0, nil, err
	}
	length := -1
	for first := true; ; first = false {
		line, err := c.from.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			_, code, _ := bytes.Cut(line, []byte(" "))
			if status, err = strconv.Atoi(string(code[:min(3, len(code))])); err != nil {
				return 0, nil, fmt.Errorf("response begins with %q", line)
			}
		case len(line) == 0 && length < 0:
			return 0, nil, errors.New("response has no Content-Length")
		case len(line) == 0:
			body = make([]byte, length)
			_, err = io.ReadFull(c.from, body)
			return status, body, err
		default:
			if name, value, _ := bytes.Cut(line, []byte(": ")); bytes.EqualFold(name, []byte("Content-Length")) {
				if length, err = strconv.Atoi(string(value)); err != nil {
					return 0, nil, err
				}
			}
		}
	}
}
