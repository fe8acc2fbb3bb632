package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/execute"
	"lockstep/internal/notify"
	"lockstep/internal/volume"
	"lockstep/tree"
)

const (
	firstRunAgain = 5 * time.Second // after a failure; doubles with each
	lastRunAgain  = 5 * time.Minute
	runsAtOnce    = 4
)

// followerRuns runs the command of a follower for each tree that is published. For each name, the volume has a file
// with the last tree for which it has succeeded: a process that is killed in between runs it again after its next
// start. A nil followerRuns runs nothing.
type followerRuns struct {
	execute.Latest
	command execute.Command
	volume  *volume.Volume
	dir     string // of these files
	grace   time.Duration
	observe func(outcome string, took time.Duration)
	log     *slog.Logger
}

// newFollowerRuns returns nil if there is no command.
func newFollowerRuns(cfg Config, vol *volume.Volume) (*followerRuns, error) {
	command, ok := cfg.commands[""]
	if !ok {
		return nil, nil
	}
	r := &followerRuns{
		command: command, volume: vol, dir: filepath.Join(vol.Root(), ".lockstep", "follow-exec"), grace: cfg.Grace,
		observe: cfg.Metrics.Notification, log: cfg.Log,
	}
	r.Latest = execute.Latest{Do: r.run, First: firstRunAgain, Last: lastRunAgain, AtOnce: runsAtOnce}
	return r, os.MkdirAll(r.dir, 0o755)
}

// pending returns the number of published names for which the command has not succeeded.
func (r *followerRuns) pending() int {
	if r == nil {
		return 0
	}
	return r.Open()
}

// begin offers all that was published, and forgets what no longer is.
func (r *followerRuns) begin(ctx context.Context) error {
	if r == nil {
		return nil
	}
	known := map[string]bool{}
	for repo, err := range r.volume.Repos() {
		if err == nil {
			err = r.offer(ctx, repo, events.Ref{}, known)
		}
		if err != nil { // a sync repairs it
			r.log.WarnContext(ctx, "repository on the volume cannot be read, skipped", "repo", repo.String(), "error", err)
		}
	}
	files, err := os.ReadDir(r.dir)
	for _, file := range files {
		if !known[file.Name()] {
			_ = os.Remove(filepath.Join(r.dir, file.Name()))
		}
	}
	return err
}

// offer offers the names of a repository, or of one of its refs, whose trees are not those of the last runs, and adds
// their files to known.
func (r *followerRuns) offer(ctx context.Context, repo events.RepoPath, only events.Ref, known map[string]bool) error {
	published, _, err := r.volume.Published(repo)
	for ref, of := range published.Trees {
		if !only.IsZero() && ref != only {
			continue
		}
		var names []string
		if ref == published.Plain {
			names = append(names, repo.String())
		}
		if published.Named[ref] {
			names = append(names, repo.String()+"@"+ref.Suffix())
		}
		for _, name := range names {
			known[fileOf(name)] = true
			if r.lastTree(name) != filepath.Base(of) {
				r.Offer(ctx, name)
			}
		}
	}
	return err
}

// settled offers what a result of the worker has published.
func (r *followerRuns) settled(ctx context.Context, result events.Result) {
	switch {
	case r == nil:
	case result.Type == events.ResultSynced: // of the default branch may have two names, but the result has one
		if err := r.offer(ctx, result.Repo, result.Ref, map[string]bool{}); err != nil {
			r.Offer(ctx, result.Path) // fails, and is retried
		}
	case result.Type == events.ResultMoved:
		if err := r.offer(ctx, result.To, events.Ref{}, map[string]bool{}); err != nil {
			r.log.WarnContext(ctx, "volume cannot be read, command not run", "repo", result.To.String(), "error", err)
		}
	}
}

// run runs the command in the tree that is published now, unless that is the tree of the last run.
func (r *followerRuns) run(ctx context.Context, name string) error {
	t, err := tree.Open(r.volume.Root(), name)
	if errors.Is(err, tree.ErrNotPublished) { // removed
		return nil
	}
	if err != nil {
		r.log.WarnContext(ctx, "tree cannot be opened, will retry", "name", name, "error", err)
		return err
	}
	defer t.Close()
	if r.lastTree(name) == filepath.Base(t.Dir()) {
		return nil
	}
	running, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.grace, kill) })()
	began := time.Now()
	output, err := r.command.Run(running, t, name, nil)
	if running.Err() != nil { // killed, to be run after the next start
		return err
	}
	took := time.Since(began)
	if err != nil {
		r.observe(notify.OutcomeFailed, took)
		r.log.WarnContext(ctx, "command failed, will retry", "name", name, "commit", t.Commit(), "took", took, "error", err)
		return err
	}
	r.observe(notify.OutcomeDelivered, took)
	r.log.InfoContext(ctx, "command run", "name", name, "commit", t.Commit(), "took", took, "output", output)
	err = disk.ReplaceUnsynced(filepath.Join(r.dir, fileOf(name)), []byte(filepath.Base(t.Dir())))
	if err != nil { // it is not run again before the next start
		r.log.WarnContext(ctx, "run cannot be recorded, the next start repeats it", "name", name, "error", err)
	}
	return nil
}

// lastTree returns the tree of the last run for a name, or "" if there was none.
func (r *followerRuns) lastTree(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, fileOf(name)))
	return string(text)
}

// fileOf returns the name of the file of a published name.
func fileOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
