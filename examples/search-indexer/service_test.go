package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/changes"
	"lockstep/internal/credential"
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
	"lockstep/router"
)

const repo = "acme/widgets"

// world has a Git server, a worker, and two indexers that share a directory.
type world struct {
	t       *testing.T
	git     *gitserver.Server
	client  redis.UniversalClient
	service service
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.Long(t)
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	server := redistest.Start(t)
	w := &world{t: t, git: git, client: server.Client()}
	w.service = service{
		root: t.TempDir(), indexes: indexes(t.TempDir()), prefix: string(events.DefaultNamespace), log: slog.New(slog.DiscardHandler),
		open: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
		},
	}
	w.startWorker(server)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for range 2 {
		wg.Go(func() {
			if err := w.service.run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return w
}

// startWorker runs a worker until the test ends.
func (w *world) startWorker(server *redistest.Server) {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	namespace, log := events.DefaultNamespace, w.service.log
	volume, err := volume.OpenVolume(w.service.root, volume.Config{})
	must(err)
	w.t.Cleanup(volume.Close)
	locker, err := locking.New(locking.Config{Redis: w.client, Prefix: namespace.Locks()})
	must(err)
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: w.client, Reader: server.Client(), ConsumerGroup: "workers", Log: log}, nil)
	must(err)
	handle := &handlers.Handlers{
		Volume: volume, States: state.NewStore(w.client, namespace), Watches: watch.NewRegistry(w.client, namespace),
		Credentials: credential.NewStore("", func(string) string { return "" }),
	}
	changes := handlers.Changes{Namespace: namespace, Source: "/lockstep/worker/w1", Handler: handle.Handle, Floor: volume.Floor, Log: log}
	r, err := router.New(router.Config{Log: log, Routes: []router.Route{{
		Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Locker: locker, Request: changes.Request, Dispose: changes.Dispose(router.Retry{}),
	}}})
	must(err)
	stopped := make(chan error, 1)
	running, stop := context.WithCancel(context.Background())
	go func() { stopped <- router.Run(running, r) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			w.t.Error(err)
		}
		if err := locker.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
}

// ask publishes a change.
func (w *world) ask(c events.Change) {
	w.t.Helper()
	c.URL = w.git.URL(repo)
	change, err := events.NewChange(c)
	if err != nil {
		w.t.Fatal(err)
	}
	msg, err := changes.Message(change)
	if err != nil {
		w.t.Fatal(err)
	}
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: w.client}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := publisher.Publish(events.DefaultNamespace.Changes(), msg); err != nil {
		w.t.Fatal(err)
	}
}

// push commits to a branch and publishes a change.
func (w *world) push(branch string, edit gitserver.Edit) {
	w.t.Helper()
	if _, err := w.git.Commit(context.Background(), repo, branch, edit); err != nil {
		w.t.Fatal(err)
	}
	ref, err := events.ParseRef("refs/heads/" + branch)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ask(events.Change{Ref: ref})
}

// finds waits until a search for word returns these files, each as "ref: path" with a short ref.
func (w *world) finds(word string, want ...string) {
	w.t.Helper()
	for i := range want {
		want[i] = repo + "@refs/heads/" + want[i]
	}
	var out strings.Builder
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		out.Reset()
		if err := command(context.Background(), &out, w.service, []string{"search", word}); err != nil {
			w.t.Fatal(err)
		}
		got := strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("search %s: %q; want %q", word, got, want)
		}
	}
}

func TestSearchFindsPushedNotDeleted(t *testing.T) {
	w := newWorld(t)
	if err := w.git.CreateEmpty(context.Background(), repo); err != nil {
		t.Fatal(err)
	}
	w.push("main", gitserver.Edit{
		Write: map[string]string{"README.md": "Widgets for everybody.", "src/retry.go": "package retry // Exponential backoff", "logo.png": "widgets\x00"},
		Link:  map[string]string{"link": "README.md"},
	})
	w.finds("WIDGETS", "main: README.md")
	w.finds("backoff", "main: src/retry.go")

	w.push("main", gitserver.Edit{Write: map[string]string{"docs/guide.md": "Backoff, explained."}})
	w.finds("backoff", "main: docs/guide.md", "main: src/retry.go")

	w.push("main", gitserver.Edit{Write: map[string]string{"docs/moved.md": "Backoff, explained."}, Delete: []string{"docs/guide.md"}})
	w.finds("backoff", "main: docs/moved.md", "main: src/retry.go")

	w.push("main", gitserver.Edit{Write: map[string]string{"README.md": "Gadgets for everybody."}, Delete: []string{"src"}})
	w.finds("gadgets", "main: README.md")
	w.finds("widgets")
	w.finds("backoff", "main: docs/moved.md")
	w.finds("exponential")

	latin1 := "caf\xe9.md" // not UTF-8
	w.push("main", gitserver.Edit{Write: map[string]string{latin1: "Espresso."}})
	w.finds("espresso", `main: "caf\xe9.md"`)
	w.push("main", gitserver.Edit{Write: map[string]string{"tea.md": "Espresso."}, Delete: []string{latin1}})
	w.finds("espresso", "main: tea.md")

	w.push("next", gitserver.Edit{Orphan: true, Write: map[string]string{"README.md": "Gizmos for everybody."}})
	w.finds("everybody", "main: README.md", "next: README.md")
	w.push("main", gitserver.Edit{Orphan: true, Write: map[string]string{"NEW.md": "Started over."}}) // force push
	w.finds("started", "main: NEW.md")
	w.finds("everybody", "next: README.md")

	if err := w.git.Delete(repo); err != nil {
		t.Fatal(err)
	}
	w.ask(events.Change{Type: events.ChangeRemoved})
	w.finds("everybody")
	w.finds("started")
	if n := w.client.XLen(context.Background(), events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
