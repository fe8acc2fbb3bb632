package operate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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

// TestLastResultsAreEvidence has results for apps: whether they are up to date is known as of the remote's last answer.
func TestLastResultsAreEvidence(t *testing.T) {
	t.Parallel()
	client, ctx, namespace := redistest.Start(t).Client(), t.Context(), events.DefaultNamespace
	repos, repo := &Repos{Cells: cells.Single(client, cells.Member{Namespace: namespace})}, testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	set := func(answered time.Duration, more ...any) {
		t.Helper()
		fields := append([]any{"repo", "acme/widgets", "head:refs/heads/main", "c2", "given:refs/heads/main:docs", "c2", "given:refs/heads/main:ci", "c1",
			"given:refs/heads/gone:ci", "c1", "given:refs/heads/main:search", "c2", "answered", time.Now().Add(-answered).Format(time.RFC3339Nano)}, more...)
		testenv.Must(client.Del(ctx, namespace.Repo(repo)).Result())(t)
		testenv.Must(client.HSet(ctx, namespace.Repo(repo), fields...).Result())(t)
	}
	polls := func(every time.Duration) {
		testenv.Must(client.HSet(ctx, namespace.Watches()+"of:acme/widgets", "every", every.Milliseconds()).Result())(t)
		testenv.Must(client.ZAdd(ctx, namespace.Poll(), redis.Z{Score: 1, Member: "acme/widgets"}).Result())(t)
	}
	says := func(want string) {
		t.Helper()
		shown := testenv.Must(repos.Get(ctx, repo))(t)
		got := ""
		for _, last := range shown.Last {
			got += strings.TrimSpace(fmt.Sprintf("%s %s: %s %s", last.App, last.Ref, last.State, last.Class)) + "\n"
		}
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	const ofCI = "ci refs/heads/gone: not published\nci refs/heads/main: behind\n"
	set(24 * time.Hour)
	says(ofCI + "docs refs/heads/main: up to date\nsearch refs/heads/main: up to date\n") // not polled: pushes tell
	polls(time.Hour)
	says(ofCI + "docs refs/heads/main: unchecked\nsearch refs/heads/main: unchecked\n")
	set(70 * time.Minute) // intervals vary, and polls take time
	says(ofCI + "docs refs/heads/main: up to date\nsearch refs/heads/main: up to date\n")
	set(0, "trouble", `{"repo":"acme/widgets","all":{"credential:robot:docs":{"scope":"credential","app":"docs","operation":"sync","class":"auth","at":"`+
		time.Now().Format(time.RFC3339)+`","failures":3}}}`)
	says(ofCI + "docs refs/heads/main: failing auth\nsearch refs/heads/main: up to date\n")
	if n := testenv.Must(repos.Get(ctx, repo))(t).InARow(); n != 3 {
		t.Errorf("%d failures in a row, want those of the credential", n)
	}
}
