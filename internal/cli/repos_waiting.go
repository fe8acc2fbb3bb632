package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// waitingNotifications is what waits to be posted to an app about a repository.
type waitingNotifications struct {
	App     string     `json:"app"`
	Waiting int64      `json:"waiting"`
	Failed  int        `json:"failed_attempts,omitempty"` // at the first one
	Error   string     `json:"error,omitempty"`           // of the last attempt
	Since   *time.Time `json:"since,omitempty"`           // when the result of the first one was settled
	Next    *time.Time `json:"next,omitempty"`            // attempt
}

// readWaiting reads what waits to be posted to the apps that watch the repository, or have received anything of it.
func readWaiting(
	ctx context.Context, client redis.UniversalClient, cfg config.Config, repo operate.Repo,
) ([]waitingNotifications, error) {
	path, err := events.ParseRepoPath(repo.Repo)
	if err != nil {
		return nil, err
	}
	watched, err := watch.NewRegistry(client, cfg.Namespace()).Of(ctx, path)
	if err != nil {
		return nil, err
	}
	var apps []string
	for _, w := range watched.Watches {
		apps = append(apps, w.App)
	}
	for _, g := range repo.Given {
		apps = append(apps, g.App)
	}
	slices.Sort(apps)
	apps = slices.Compact(apps)
	boxes, err := notify.Outboxes{Redis: client, Namespace: cfg.Namespace()}.About(ctx, path, apps)
	if err != nil {
		return nil, err
	}
	var waiting []waitingNotifications
	for _, app := range apps {
		box, ok := boxes[app]
		if !ok {
			continue
		}
		shown := waitingNotifications{App: app, Waiting: box.Items, Failed: box.Failed, Error: box.Error}
		if !box.Queued.IsZero() {
			shown.Since = &box.Queued
		}
		if !box.Next.IsZero() {
			shown.Next = &box.Next
		}
		waiting = append(waiting, shown)
	}
	return waiting, nil
}

// String says how many wait, since when, and why.
func (n waitingNotifications) String() string {
	text := fmt.Sprintf("%d waiting since %s", n.Waiting, term.When(timeOf(n.Since)))
	if n.Failed == 0 {
		return text
	}
	text += fmt.Sprintf(", attempt %d failed", n.Failed)
	if n.Next != nil {
		text += ", next attempt " + term.Absolute(*n.Next)
	}
	if n.Error != "" {
		text += ": " + term.Printable(n.Error)
	}
	return text
}
