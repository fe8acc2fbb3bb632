package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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

	changeIDPrefix = "demo-" // followed by a number

	readerCount = 2
	readPause   = 2 * time.Millisecond // after each tree, to leave time for other work
)

// push is a push without a result.
type push struct {
	repo *sampleRepo
	at   time.Time
}

// pushAll pushes until stop is closed.
func (d *demo) pushAll(ctx context.Context, stop <-chan struct{}) error {
	tick := time.NewTicker(pushInterval)
	defer tick.Stop()
	hot, others := d.repos[0], d.repos[1:]
	for round := 1; ; round++ {
		for i := range hotPushes + otherPushes {
			repo := hot
			if i >= hotPushes {
				repo = others[(round*otherPushes+i)%len(others)]
			}
			if err := d.push(ctx, repo, ""); err != nil {
				return err
			}
		}
		if round%repackEvery == 0 {
			for _, repo := range d.repos {
				if _, err := d.git.Git(ctx, repo.name, "", "repack", "-a", "-d", "-q"); err != nil {
					return err
				}
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

// push commits on top of parent, or of the last commit if parent is empty, and publishes a change, as a webhook would.
func (d *demo) push(ctx context.Context, repo *sampleRepo, parent string) error {
	repo.pushing.Lock()
	defer repo.pushing.Unlock()
	before := repo.head
	repo.pushes++
	commit, err := d.git.Commit(ctx, repo.name, gitserver.Main, gitserver.Edit{Write: contents(repo.name, repo.pushes), Parent: parent})
	if err != nil {
		return err
	}
	repo.head = commit
	change, err := events.NewChange(events.Change{
		ID: d.register(repo, commit), Source: "/lockstep/demo", URL: d.git.URL(repo.name), Before: before, After: commit, App: watchingApp, Watched: true,
	})
	if err != nil {
		return err
	}
	return app.PublishChange(ctx, d.client, events.DefaultNamespace, change)
}

// register records a push before its change is published, so that a missing or duplicate result is noticed, and returns the change's id.
func (d *demo) register(repo *sampleRepo, commit string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	repo.commits[commit] = repo.pushes
	d.pushes++
	id := changeIDPrefix + strconv.Itoa(d.pushes)
	d.waiting[id] = push{repo, time.Now()}
	return id
}

// settled reports whether all changes have their results.
func (d *demo) settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) == 0
}

// countResults counts the results of changes until ctx is done.
func (d *demo) countResults(ctx context.Context) error {
	for from := "0"; ctx.Err() == nil; {
		read, err := d.client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 100, Block: 100 * time.Millisecond}).Result()
		if errors.Is(err, redis.Nil) || ctx.Err() != nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("demo: read the results: %w", err)
		}
		for _, entry := range read[0].Messages {
			from = entry.ID
			payload, _ := entry.Values["payload"].(string)
			result, err := events.ParseResult([]byte(payload))
			if err != nil {
				return fmt.Errorf("demo: result %s: %w", entry.ID, err)
			}
			d.count(result, events.EntryTime(entry.ID))
		}
	}
	return nil
}

// count counts a result that was settled at that time.
func (d *demo) count(result events.Result, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range result.Deliveries {
		pushed, waiting := d.waiting[id]
		switch {
		case waiting:
			delete(d.waiting, id)
			d.results++
			pushed.repo.latencies = append(pushed.repo.latencies, max(0, at.Sub(pushed.at)))
		case strings.HasPrefix(id, changeIDPrefix): // others are of the registry, for a new watch
			d.doubled++
		}
	}
	if result.Type == events.ResultFailed {
		d.failed++
		d.say("FAILED: %s: %s", result.Repo, result.Error)
	}
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

// readTrees checks the published trees one after the other until ctx is done. It reads them like any program: it resolves the name
// once and reads files.
func (d *demo) readTrees(ctx context.Context) {
	for i := 0; app.Sleep(ctx, readPause); i++ {
		repo := d.repos[i%len(d.repos)]
		err := d.readTree(repo)
		d.mu.Lock()
		d.reads++
		if err != nil {
			d.torn++
			d.say("TORN: %s: %v", repo.name, err)
		}
		d.mu.Unlock()
	}
}

// readTree returns an error unless the published tree has exactly the files of the push that made its commit.
func (d *demo) readTree(repo *sampleRepo) error {
	tree, commit, err := resolve(filepath.Join(d.root, repo.name))
	if err != nil {
		return err
	}
	d.mu.Lock()
	number, ok := repo.commits[commit]
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("its commit %.12s was never pushed", commit)
	}
	for path, want := range contents(repo.name, number) {
		text, err := os.ReadFile(filepath.Join(tree, path))
		if err != nil {
			return err
		}
		if string(text) != want {
			return fmt.Errorf("%s is not of push %d: %.40q", path, number, text)
		}
	}
	return nil
}

// resolve resolves a published name and returns its tree and commit.
func resolve(name string) (tree, commit string, err error) {
	if tree, err = filepath.EvalSymlinks(name); err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(filepath.Join(tree, ".git", "lockstep-commit"))
	return tree, strings.TrimSpace(string(text)), err
}
