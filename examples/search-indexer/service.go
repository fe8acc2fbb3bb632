package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
	"lockstep/router"
)

type service struct {
	open    func() redis.UniversalClient
	prefix  string
	root    string
	indexes indexes
	log     *slog.Logger
}

// run follows results until ctx is done, starting with the first one on the stream.
func (s *service) run(ctx context.Context) error {
	namespace, err := events.ParseNamespace(s.prefix)
	if err != nil {
		return err
	}
	client := s.open()
	defer client.Close()
	locker, err := locking.New(locking.Config{Redis: client, Prefix: s.prefix + "search:lock:", Log: s.log})
	if err != nil {
		return err
	}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Reader: s.open(), Prefix: s.prefix, ConsumerGroup: "search", Key: key, Window: 4, Log: s.log, // 4 at once
	}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Log: s.log, Routes: []router.Route{{
		Name: "search", Topic: namespace.Results(), Subscriber: subscriber, Handler: s.handle,
		Locker: locker, Request: request, Dispose: router.Disposer{Log: s.log},
	}}})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := router.Run(ctx, r); err != nil {
			return err
		}
		return locker.Close(context.WithoutCancel(ctx))
	})
	return g.Wait()
}

// follow updates a repository's index from a result. The caller holds the lease, and confirm checks that it still does.
func (s *service) follow(ctx context.Context, r events.Result, confirm func(context.Context) error) error {
	known, err := s.indexes.load(r.Repo)
	if err != nil {
		return err
	}
	switch {
	case r.Type == events.ResultRemoved && !r.Ref.IsZero():
		if known.past(r) {
			return nil
		}
		known.Refs[r.Ref.String()] = snapshot{Fence: r.Fence}
	case r.Type == events.ResultRemoved, r.Type == events.ResultMoved: // a moved repository is synced at its new path
		known.remove(r.Fence)
	case r.Type == events.ResultSynced:
		if known.past(r) {
			return nil
		}
		next, err := s.read(r, known.Refs[r.Ref.String()])
		switch {
		case errors.Is(err, fs.ErrNotExist) && s.retired(r):
			s.log.InfoContext(ctx, "tree is gone, a later result follows", "repo", r.Repo.String(), "commit", r.After)
			return nil
		case err != nil:
			return err
		}
		known.Refs[r.Ref.String()] = next
	default:
		return nil // failed: the published tree is unchanged
	}
	if err := confirm(ctx); err != nil {
		return err // another process holds the lease and receives the same result
	}
	if err := s.indexes.save(r.Repo, known); err != nil {
		return err
	}
	s.log.InfoContext(ctx, "index saved", "repo", r.Repo.String(), "ref", r.Ref.String(), "commit", r.After, "files", len(r.Files))
	return nil
}

// read returns the snapshot of a result. It reads the tree that the result names, because the published name may link to
// a newer one. If the snapshot from is at the commit that the result starts from, the changed files suffice. It may be at
// another commit: results arrive twice, late, or never (streams are trimmed), and each app has its own.
func (s *service) read(r events.Result, from snapshot) (snapshot, error) {
	if from.Commit == r.After {
		from.Fence = r.Fence
		return from, nil
	}
	tree, err := os.OpenRoot(filepath.Join(s.root, filepath.FromSlash(r.Tree)))
	if err != nil {
		return snapshot{}, err
	}
	defer tree.Close()
	changed := r.Files
	if from.Commit != r.Before || r.Full || r.Truncated {
		from = snapshot{}
		if changed, err = list(tree); err != nil {
			return snapshot{}, err
		}
	}
	next := from.without(changed)
	next.Commit, next.Fence = r.After, r.Fence
	for _, file := range changed {
		if file.Status == events.FileDeleted {
			continue
		}
		if err := next.add(tree, file.Name()); err != nil {
			return snapshot{}, err
		}
	}
	return next, nil
}

// retired reports whether the result's tree is gone although the volume is mounted: a newer tree replaced it, or the
// repository was removed. A later result reports which.
func (s *service) retired(r events.Result) bool {
	_, volume := os.Stat(filepath.Join(s.root, ".lockstep"))
	_, tree := os.Stat(filepath.Join(s.root, filepath.FromSlash(r.Tree)))
	return volume == nil && errors.Is(tree, fs.ErrNotExist)
}

// list returns all files of a tree as added.
func list(tree *os.Root) ([]events.File, error) {
	var files []events.File
	err := fs.WalkDir(tree.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == ".git": // for plain git; not part of the commit
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !entry.IsDir():
			files = append(files, events.File{Path: path, Status: events.FileAdded})
		}
		return nil
	})
	return files, err
}
