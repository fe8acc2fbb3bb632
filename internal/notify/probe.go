package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"time"

	"lockstep/internal/execute"
	"lockstep/internal/watch"
	"lockstep/tree"
)

// TestType is the type of the events that [Test] sends.
const TestType = "lockstep.test.v1"

// Answer is the response of an app to a test notification.
type Answer struct {
	ID     string // webhook-id
	Status int    // 0 of a command
	Body   string // its first 200 bytes; of a command, the end of its output
	Took   time.Duration
}

// Test posts a test notification to the URL of a watch, signed as its notifications are, and returns the
// response. If the app has a command, it runs that instead, in the tree that is published now. It needs Secrets of cfg, and
// uses Hosts, Trust, UserAgent, Commands and Root. It queues and records nothing.
func Test(ctx context.Context, cfg Config, w watch.Watch) (Answer, error) {
	command, runs := cfg.Commands[w.App]
	if w.NotifyURL == "" && !runs {
		return Answer{}, errors.New("the watch has no URL for notifications; see lockstep watch set --help")
	}
	cfg = cfg.withDefaults()
	client, err := newClient(cfg)
	if err != nil {
		return Answer{}, err
	}
	n := &Notifier{cfg: cfg, client: client}
	defer client.CloseIdleConnections()
	id := "msg_" + rand.Text()[:24]
	now := time.Now()
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/lockstep/notify-test", "type": TestType, "subject": w.Repo.String(),
		"time":            now.UTC().Format(time.RFC3339Nano),
		"datacontenttype": "application/json", "data": map[string]string{"app": w.App, "repo": w.Repo.String(),
			"ref": w.Ref.String()},
	})
	if err != nil {
		return Answer{}, err
	}
	if runs {
		output, err := runTest(ctx, cfg.Root, w, command, body)
		return Answer{ID: id, Body: output, Took: time.Since(now)}, err
	}
	resp, err := n.request(ctx, w, item{ID: id, Body: string(body)}, now)
	if err != nil {
		return Answer{ID: id}, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // the status decides
	return Answer{ID: id, Status: resp.StatusCode, Body: string(text), Took: time.Since(now)}, nil
}

// runTest runs a command in the tree that is published for a watch; of a pattern, in that of the default branch.
func runTest(ctx context.Context, root string, w watch.Watch, command execute.Command, body []byte) (string, error) {
	name := w.Repo.String()
	t, err := tree.Open(root, name)
	if ref, single := w.Ref.Ref(); single && !ref.IsZero() && (err != nil || t.Ref() != ref) {
		if err == nil {
			_ = t.Close()
		}
		name += "@" + ref.Suffix()
		t, err = tree.Open(root, name)
	}
	if err != nil {
		return "", err
	}
	defer t.Close()
	return command.Run(ctx, t, name, body)
}
