package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/gitserver"
)

// In each round of pushes the hot repository gets some and so do some of the others, in turn.
const (
	demoRound     = 250 * time.Millisecond
	demoHotPushes = 3
	demoOthers    = 2
	demoTidy      = 100 // rounds between two repacks of the sample repositories
)

// demoHeads are the commits that were pushed last.
type demoHeads struct {
	mu   sync.Mutex // held while a commit is made
	last map[string]string
	root map[string]string // the first commit
}

// create makes a sample repository with its first commit.
func (d *demo) create(ctx context.Context, repo string) error {
	commit, err := d.git.Create(ctx, repo, demoContents(repo, 0))
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

// push pushes until stop.
func (d *demo) push(ctx context.Context, stop <-chan struct{}) error {
	d.board.open(d.asked)
	tick := time.NewTicker(demoRound)
	defer tick.Stop()
	others := d.board.repos[1:]
	for round := 1; ; round++ {
		pushed := make([]string, 0, demoHotPushes+demoOthers)
		for range demoHotPushes {
			pushed = append(pushed, demoHot)
		}
		for i := range demoOthers {
			pushed = append(pushed, others[(round*demoOthers+i)%len(others)].name)
		}
		for _, repo := range pushed {
			if err := d.pushOne(ctx, repo, ""); err != nil {
				return err
			}
		}
		if round%demoTidy == 0 {
			if err := d.tidy(ctx); err != nil {
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

// pushOne makes a commit upon parent, or upon the last one if that is empty, and publishes a change of it for each
// app that watches, as a webhook does.
func (d *demo) pushOne(ctx context.Context, repo, parent string) error {
	d.heads.mu.Lock()
	defer d.heads.mu.Unlock()
	before := d.heads.last[repo]
	number := d.board.next(repo)
	commit, err := d.git.Commit(ctx, repo, gitserver.Main, gitserver.Edit{Write: demoContents(repo, number), Parent: parent})
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
		if err := publish(ctx, d.client, d.config(), change); err != nil {
			return err
		}
	}
	return nil
}

// rewrite pushes by force: a commit upon the first one, instead of upon the last.
func (d *demo) rewrite(ctx context.Context) error {
	if err := d.pushOne(ctx, demoRewrite, d.heads.root[demoRewrite]); err != nil {
		return err
	}
	d.view.event("%s pushed to by force: its history is another now", demoRewrite)
	return nil
}

// tidy packs the sample repositories, which get some objects with each push.
func (d *demo) tidy(ctx context.Context) error {
	for _, repo := range d.board.repos {
		if _, err := d.git.Git(ctx, repo.name, "", "repack", "-a", "-d", "-q"); err != nil {
			return err
		}
	}
	return nil
}

// demoContents are a repository's files after a push. All say which, so that a reader can tell a mix of two.
func demoContents(repo string, number int) map[string]string {
	files := make(map[string]string, demoFiles)
	for f := range demoFiles {
		files[fmt.Sprintf("dir-%d/file-%d", f%5, f)] = demoText(repo, number)
	}
	return files
}

func demoText(repo string, number int) string {
	return fmt.Sprintf("%s, push %d\n%s", repo, number, strings.Repeat(".", number%64)) // of any length
}
