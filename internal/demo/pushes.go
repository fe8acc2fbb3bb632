package demo

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
)

// Each round pushes to the hot repository several times and to some of the others in turn.
const (
	pushInterval = 250 * time.Millisecond
	hotPushes    = 3
	otherPushes  = 2
	repackEvery  = 100 // rounds between repacks of the sample repositories
)

// heads are the last pushed commits.
type heads struct {
	mu   sync.Mutex // held during a push
	last map[string]string
	root map[string]string // first commits
}

// create creates a sample repository with its first commit.
func (d *demo) create(ctx context.Context, repo string) error {
	commit, err := d.git.Create(ctx, repo, contents(repo, 0))
	if err != nil {
		return err
	}
	if d.heads.last == nil {
		d.heads.last, d.heads.root = map[string]string{}, map[string]string{}
	}
	d.heads.last[repo], d.heads.root[repo] = commit, commit
	d.board.created(repo, commit)
	return nil
}

// push pushes until stop is closed.
func (d *demo) push(ctx context.Context, stop <-chan struct{}) error {
	d.board.open(d.git.Stats)
	tick := time.NewTicker(pushInterval)
	defer tick.Stop()
	others := d.board.repos[1:]
	for round := 1; ; round++ {
		pushed := make([]string, 0, hotPushes+otherPushes)
		for range hotPushes {
			pushed = append(pushed, hotRepo)
		}
		for i := range otherPushes {
			pushed = append(pushed, others[(round*otherPushes+i)%len(others)].name)
		}
		for _, repo := range pushed {
			if err := d.pushOne(ctx, repo, ""); err != nil {
				return err
			}
		}
		if round%repackEvery == 0 {
			if err := d.repack(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stop:
			return nil
		case <-tick.C:
		}
	}
}

// pushOne commits on top of parent, or of the last commit if parent is empty, and publishes a change for each watching app, as a
// webhook would.
func (d *demo) pushOne(ctx context.Context, repo, parent string) error {
	d.heads.mu.Lock()
	defer d.heads.mu.Unlock()
	before := d.heads.last[repo]
	number := d.board.nextPush(repo)
	commit, err := d.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: contents(repo, number), Parent: parent})
	if err != nil {
		return err
	}
	d.heads.last[repo] = commit
	apps := appsOf(repo)
	for i, id := range d.board.pushed(repo, number, commit, len(apps)) {
		change, err := events.NewChange(events.Change{
			ID: id, Source: "/lockstep/demo", URL: d.git.URL(repo), Before: before, After: commit,
			App: apps[i], Credential: credentialFor(repo, apps[i]), Watched: true,
		})
		if err != nil {
			return err
		}
		if err := app.PublishChange(ctx, d.client, events.DefaultNamespace, change); err != nil {
			return err
		}
	}
	return nil
}

// rewrite force-pushes a commit on top of the first one.
func (d *demo) rewrite(ctx context.Context) error {
	if err := d.pushOne(ctx, forcePushedRepo, d.heads.root[forcePushedRepo]); err != nil {
		return err
	}
	d.view.event("force-pushed to %s: its history is rewritten", forcePushedRepo)
	return nil
}

// repack packs the sample repositories, which grow with each push.
func (d *demo) repack(ctx context.Context) error {
	for _, repo := range d.board.repos {
		if _, err := d.git.Git(ctx, repo.name, "", "repack", "-a", "-d", "-q"); err != nil {
			return err
		}
	}
	return nil
}

// contents returns a repository's files after a push. Each file names the push, so that a reader can detect a mix of two.
func contents(repo string, number int) map[string]string {
	files := make(map[string]string, fileCount)
	for f := range fileCount {
		files[fmt.Sprintf("dir-%d/file-%d", f%5, f)] = fileText(repo, number)
	}
	return files
}

func fileText(repo string, number int) string {
	return fmt.Sprintf("%s, push %d\n%s", repo, number, strings.Repeat(".", number%64)) // of varying length
}
