package operate

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestRepositoryThatNeverExistedIsRemoved(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	set := cells.Single(client, cells.Member{Namespace: namespace})
	repos, repo := &Repos{Cells: set}, testenv.Must(events.ParseRepoPath("acme/widget"))(t)
	if _, err := repos.Remove(ctx, repo); !errors.Is(err, ErrUnknownRepo) {
		t.Errorf("unknown: %v", err)
	}
	testenv.Must(client.HSet(ctx, namespace.Repo(repo), "repo", "acme/widget", "head:refs/heads/main", "abc").Result())(t)
	if _, err := repos.Remove(ctx, repo); !errors.Is(err, ErrRepoStays) {
		t.Errorf("published: %v", err)
	}
	testenv.Must(client.HDel(ctx, namespace.Repo(repo), "head:refs/heads/main").Result())(t)
	testenv.Must(client.HSet(ctx, namespace.Repo(repo), "moved:acme/widgets", "5-0 https://git.example/acme/widgets").Result())(t)
	if _, err := repos.Remove(ctx, repo); !errors.Is(err, ErrRepoStays) {
		t.Errorf("moved: %v", err)
	}
	testenv.Must(client.HDel(ctx, namespace.Repo(repo), "moved:acme/widgets").Result())(t)
	testenv.Must(client.HSet(ctx, namespace.Failing(), repo.Key(), "1").Result())(t)
	for _, name := range []string{"acme/widget", "acme/widgets"} {
		testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: namespace.Dead(), Values: []string{
			"reason", "malformed", "stream", namespace.Changes(), "original:repo", name,
		}}).Result())(t)
	}
	removed, err := repos.Remove(ctx, repo)
	if err != nil || removed.Letters != 1 {
		t.Fatalf("%+v, %v, want one letter dropped", removed, err)
	}
	if n := client.Exists(ctx, namespace.Repo(repo), namespace.Failing(), namespace.Locks()+repo.Key()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	if _, err := repos.Get(ctx, repo); !errors.Is(err, ErrUnknownRepo) {
		t.Errorf("after that: %v", err)
	}
	if n := client.XLen(ctx, namespace.Dead()).Val(); n != 1 {
		t.Errorf("%d letters, want that of the other repository", n)
	}
}
