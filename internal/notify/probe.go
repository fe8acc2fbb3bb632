package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"lockstep/internal/egress"
	"lockstep/internal/watch"
)

// TestType is the type of the events that [Test] sends.
const TestType = "lockstep.test.v1"

// Answer is the response of an app to a test notification.
type Answer struct {
	ID     string // webhook-id
	Status int
	Body   string // its first 200 bytes
	Took   time.Duration
}

// Test posts a test notification to the URL of a watch, signed as its notifications are, and returns the
// response. It needs Secrets of cfg, and uses Hosts, TLS, UserAgent and Timeout. It queues and records
// nothing.
func Test(ctx context.Context, cfg Config, w watch.Watch) (Answer, error) {
	if w.NotifyURL == "" {
		return Answer{}, errors.New("the watch has no notify_url")
	}
	hosts, err := egress.ParseHosts("notify-hosts", cfg.Hosts)
	if err != nil {
		return Answer{}, err
	}
	cfg.UserAgent, cfg.Timeout = cmp.Or(cfg.UserAgent, "lockstep"), cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.PerApp, cfg.Propagator = 1, propagation.TraceContext{}
	n := &Notifier{cfg: cfg, client: newClient(cfg, egress.Policy{Hosts: hosts, Foreign: true, Timeout: dialTimeout})}
	defer n.client.CloseIdleConnections()
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
	resp, err := n.request(ctx, w, item{ID: id, Body: string(body)}, now)
	if err != nil {
		return Answer{ID: id}, err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // the status decides
	return Answer{ID: id, Status: resp.StatusCode, Body: string(text), Took: time.Since(now)}, nil
}
