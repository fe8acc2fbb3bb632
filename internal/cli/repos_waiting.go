package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/term"
	"lockstep/internal/watch"
)

// readWaiting reads what waits to be posted to the apps that watch the repository, or have received anything of it.
func readWaiting(
	ctx context.Context, client redis.UniversalClient, cfg config.Config, repo operate.Repo,
) ([]notify.Box, error) {
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
	return notify.Outboxes{Redis: client, Namespace: cfg.Namespace()}.About(ctx, path, slices.Compact(apps))
}

// waitingText says how many notifications wait, since when, and why.
func waitingText(box notify.Box) string {
	text := fmt.Sprintf("%d waiting since %s", box.Items, term.When(box.Queued))
	if box.Failed == 0 {
		return text
	}
	text += fmt.Sprintf(", attempt %d failed", box.Failed)
	if !box.Next.IsZero() {
		text += ", next attempt " + term.Absolute(box.Next)
	}
	if box.Error != "" {
		text += ": " + term.Printable(box.Error)
	}
	return text
}
