package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/changes"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

const (
	pushPause   = 40 * time.Millisecond // between pushes, of which every third is to another than the hot repository
	forcePush   = 9                     // number of the push that rewrites the history of the repository of the third push
	repackEvery = 1000                  // pushes to a repository between its repacks
	fileCount   = 40                    // per repository
	readPause   = time.Millisecond      // after each tree, to leave time for other work
)

// sampleRepo is a sample repository.
type sampleRepo struct {
	name        string
	first, head string // first and last commit

	commits                        map[string]int // push number by commit
	pushes, reads                  int
	torn, settled, doubled, failed int
	latencies                      []time.Duration // from push to result
}

// push is a published push.
type push struct {
	repo    *sampleRepo
	at      time.Time
	settled bool
}

// createRepos creates the sample repositories, each with a watch.
func (d *demo) createRepos(ctx context.Context) error {
	registry := watch.NewRegistry(d.client, events.DefaultNamespace)
	for i := range repoCount {
		name := hotRepo
		if i > 0 {
			name = fmt.Sprintf("demo/sample-%d", i)
		}
		commit, err := d.git.Create(ctx, name, contents(name, 0))
		if err != nil {
			return err
		}
		d.repos = append(d.repos, &sampleRepo{name: name, first: commit, head: commit, commits: map[string]int{commit: 0}})
		w, err := watch.New(watch.Watch{App: "docs", URL: d.git.URL(name)})
		if err != nil {
			return err
		}
		if _, err := registry.Put(ctx, w); err != nil {
			return err
		}
	}
	d.say("app docs watches %d repositories", repoCount)
	return nil
}

// cloned reports whether all repositories are published.
func (d *demo) cloned() bool {
	return !slices.ContainsFunc(d.repos, func(repo *sampleRepo) bool {
		_, _, err := resolve(filepath.Join(d.root, repo.name))
		return err != nil
	})
}

// pushAll pushes until pushing is done. At the end of its time, a busy machine may have made few pushes: it goes on until
// history was rewritten.
func (d *demo) pushAll(ctx, pushing context.Context) error {
	for n := 1; ctx.Err() == nil; n++ {
		if !redisx.Pause(pushing, pushPause) && (n > forcePush || errors.Is(pushing.Err(), context.Canceled)) {
			return nil
		}
		repo, parent := d.repos[0], ""
		if n%3 == 0 {
			repo = d.repos[1+n/3%(repoCount-1)]
		}
		if n == forcePush {
			repo, parent = d.repos[2], d.repos[2].first
			d.say("force-push to %s: its history is rewritten", repo.name)
		}
		if err := d.push(ctx, repo, parent); err != nil {
			return err
		}
	}
	return nil
}

// push commits on top of parent, or of the last commit if parent is empty, and publishes a change, as a webhook would.
func (d *demo) push(ctx context.Context, repo *sampleRepo, parent string) error {
	commit, err := d.git.Commit(ctx, repo.name, gitserver.Main,
		gitserver.Edit{Write: contents(repo.name, repo.pushes+1), Parent: parent})
	if err != nil {
		return err
	}
	change, err := events.NewChange(events.Change{
		ID: d.register(repo, commit), Source: "/lockstep/demo", URL: d.git.URL(repo.name), Before: repo.head,
		After: commit, App: "docs", Watched: true,
	})
	if err != nil {
		return err
	}
	repo.head = commit
	if repo.pushes%repackEvery == 0 {
		if _, err := d.git.Git(ctx, repo.name, "", "repack", "-a", "-d", "-q"); err != nil {
			return err
		}
	}
	return app.PublishChange(ctx, d.client, events.DefaultNamespace, change)
}

// register records a push before its change is published, so that a missing or duplicate result is noticed,
// and returns the change's id.
func (d *demo) register(repo *sampleRepo, commit string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	repo.pushes++
	repo.commits[commit] = repo.pushes
	id := "demo-" + strconv.Itoa(len(d.published))
	d.published[id] = &push{repo: repo, at: time.Now()}
	return id
}

// settled reports whether all pushes have their results.
func (d *demo) settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.ContainsFunc(d.repos, func(repo *sampleRepo) bool { return repo.settled < repo.pushes })
}

// countResults counts the results of pushes until ctx is done.
func (d *demo) countResults(ctx context.Context) error {
	after := map[string]string{events.DefaultNamespace.Results(): "0-0"}
	err := stream.NewReader(d.client).Follow(ctx, after, func(_ string, entry redis.XMessage) error {
		result, err := changes.ParseResult(entry)
		if err == nil {
			d.count(result, events.EntryTime(entry.ID))
		}
		return err
	})
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("demo: read the results: %w", err)
}

// count counts a result that was settled at that time. Changes that the registry published for a new watch do
// not count.
func (d *demo) count(result events.Result, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range result.Deliveries {
		p := d.published[id]
		switch {
		case p == nil:
		case p.settled:
			p.repo.doubled++
		default:
			p.settled = true
			p.repo.settled++
			p.repo.latencies = append(p.repo.latencies, max(0, at.Sub(p.at)))
		}
		if p != nil && result.Type != events.ResultSynced {
			p.repo.failed++
			d.say("FAILED: %s: %s", result.Repo, result.Error)
		}
	}
}

// contents returns a repository's files after a push. Each file names the push, so that a reader can detect a
// mix of two.
func contents(repo string, number int) map[string]string {
	files := make(map[string]string, fileCount)
	for f := range fileCount {
		// of varying length
		files[fmt.Sprintf("dir-%d/file-%d", f%5, f)] = fmt.Sprintf("%s, push %d\n%s", repo, number,
			strings.Repeat(".", number%64))
	}
	return files
}

// readTrees checks the published trees one after the other until ctx is done. It reads them like any program:
// it resolves the name once and reads files.
func (d *demo) readTrees(ctx context.Context) {
	for i := 0; redisx.Pause(ctx, readPause); i++ {
		repo := d.repos[i%len(d.repos)]
		err := d.readTree(repo)
		d.mu.Lock()
		repo.reads++
		if err != nil {
			repo.torn++
			d.say("TORN: %s: %v", repo.name, err)
		}
		d.mu.Unlock()
	}
}

// readTree returns an error unless the published tree has the files of the push that made its commit.
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
