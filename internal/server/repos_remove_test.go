package server_test

import (
	"net/http"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

func TestRepositoryIsRemoved(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	ask := asker(t, server.Config{Repos: reposOf(client)})
	change := testenv.Must(events.NewChange(events.Change{URL: "https://git.example/acme/widget.git", App: "docs"}))(t)
	repo := "/api/v1/repos/acme/widget"
	ask("DELETE", "/api/v1/repos/x", "not a repository path", http.StatusBadRequest)
	ask("DELETE", repo, "unknown repository", http.StatusNotFound)
	testenv.Must(client.HSet(ctx, namespace.Repo(change.Repo), "repo", "acme/widget").Result())(t)
	w := testenv.Must(watch.New(watch.Watch{App: "docs", URL: change.URL}))(t)
	registry := watch.NewRegistry(client, namespace)
	if _, _, _, err := registry.Create(ctx, w); err != nil {
		t.Fatal(err)
	}
	ask("DELETE", repo, "docs watches it", http.StatusConflict)
	testenv.Must(registry.Remove(ctx, w.Key()))(t)
	ask("DELETE", repo, `{"repo":"acme/widget","letters":0}`, http.StatusOK)
	ask("DELETE", repo, "unknown repository", http.StatusNotFound)
}
