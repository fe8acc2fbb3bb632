package state_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
)

func TestListHasEachRepositoryOnce(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	pipe := client.Pipeline()
	for n := range 120 {
		pipe.HSet(ctx, fmt.Sprintf("lockstep:{0}:repo:acme/repo-%03d", n), "repo", fmt.Sprintf("Acme/Repo-%03d", n), "trouble", fmt.Sprintf(`{"all":{"repo":{"scope":"repo","failures":%d}}}`, n))
		pipe.HSet(ctx, fmt.Sprintf("lockstep:{0}:lock:acme/repo-%03d", n), "fence", 1)
		pipe.HSet(ctx, fmt.Sprintf("lockstep:{1}:repo:acme/other-%03d", n), "repo", "of another deployment")
	}
	pipe.HSet(ctx, "lockstep:{0}:repo:zoo/x", "tombstone", "5-0")
	pipe.HSet(ctx, "lockstep:{0}:repo:zoo/v", "tombstone", "5-0")
	pipe.HSet(ctx, "lockstep:{0}:watch:of:zoo/v", "version", "1")
	pipe.HSet(ctx, "lockstep:{0}:repo:zoo/y", "tombstone", "5-0", "synced", time.Now().UTC().Format(time.RFC3339Nano))
	pipe.HSet(ctx, "lockstep:{0}:repo:zoo/w", "tombstone", "5-0", "trouble", `{"repo":"zoo/w","all":{"poll:":{"operation":"poll"}}}`)
	pipe.Set(ctx, "lockstep:{0}:repo:zoo/z", "not a hash", 0)
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	store := state.NewStore(client, events.DefaultNamespace)
	all := func(prefix string, limit int) map[string]state.Summary {
		found := map[string]state.Summary{}
		for cursor, last := uint64(0), false; !last; {
			page, err := store.List(ctx, prefix, cursor, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.Repos {
				found[r.Repo] = r
			}
			if !slices.IsSortedFunc(page.Repos, func(a, b state.Summary) int { return strings.Compare(strings.ToLower(a.Repo), strings.ToLower(b.Repo)) }) {
				t.Error("a page is not sorted")
			}
			cursor, last = page.Next, page.Next == 0
		}
		return found
	}
	for _, limit := range []int{1, 17, 1000} {
		found := all("", limit)
		if len(found) != 124 || found["Acme/Repo-119"].Circuit.Failures != 119 {
			t.Errorf("limit %d: %d repositories, want 124; the last: %+v", limit, len(found), found["Acme/Repo-119"])
		}
	}
	found := all("Zoo/", 10)
	if len(found) != 4 || found["zoo/v"].Removed != "" || found["zoo/w"].Removed != "" || found["zoo/x"].Removed != "5-0" || found["zoo/y"].Removed != "" {
		t.Errorf("below zoo: %+v; want x removed, v watched, y synced and w failing since", found)
	}
	if found := all("*", 10); len(found) != 0 {
		t.Errorf("a star acts as a wildcard: %v", found)
	}
}

func TestListFindsRareMatchesOnOnePage(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.StartReal(t).Client() // the embedded Redis sorts all keys for each SCAN
	const batch = 200
	for from := 0; from < 20_000; from += batch {
		if _, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range batch {
				pipe.HSet(ctx, fmt.Sprintf("lockstep:{0}:repo:acme/repo-%d", from+n), "fence", 1)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	client.HSet(ctx, "lockstep:{0}:repo:zoo/x", "fence", 1)
	page, err := state.NewStore(client, events.DefaultNamespace).List(ctx, "zoo/", 0, 50)
	if err != nil || len(page.Repos) != 1 || page.Next != 0 {
		t.Errorf("%+v, %v; want one repository", page, err)
	}
}

func TestAllGiven(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"url", "https://example.com/acme/widgets", "given:refs/heads/main:", "a", "given:refs/heads/main:docs", "b", "given:refs/heads/dev:docs", "c"}
	if err := client.HSet(ctx, events.DefaultNamespace.Repo(repo), fields).Err(); err != nil {
		t.Fatal(err)
	}
	known, now, err := state.NewStore(client, events.DefaultNamespace).LoadAt(ctx, repo)
	if err != nil || known.IsZero() || known.Remote() != "https://example.com/acme/widgets" || time.Since(now).Abs() > time.Hour {
		t.Fatalf("%+v at %v, error %v", known, now, err)
	}
	want := []state.Given{{App: "", Ref: "refs/heads/main", Commit: "a"}, {App: "docs", Ref: "refs/heads/dev", Commit: "c"}, {App: "docs", Ref: "refs/heads/main", Commit: "b"}}
	if got := known.AllGiven(); !slices.Equal(got, want) {
		t.Errorf("given %v, want %v", got, want)
	}
}

func TestListOnCluster(t *testing.T) {
	t.Parallel()
	server, err := redisx.Parse(redistest.StartCluster(t).URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, client := context.Background(), server.Open()
	defer client.Close()
	for n := range 20 { // without the hash tag they would be on all masters
		if err := client.HSet(ctx, fmt.Sprintf("lockstep:{0}:repo:acme/r%d", n), "repo", fmt.Sprintf("acme/r%d", n)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	store := state.NewStore(client, events.DefaultNamespace)
	if page, err := store.List(ctx, "", 0, 1000); err != nil || len(page.Repos) != 20 || page.Next != 0 {
		t.Errorf("%d repositories, next %d, error %v; want 20 on one page", len(page.Repos), page.Next, err)
	}
	repo, err := events.ParseRepoPath("acme/r1")
	if err != nil {
		t.Fatal(err)
	}
	if _, now, err := store.LoadAt(ctx, repo); err != nil || now.IsZero() {
		t.Errorf("%v, error %v", now, err)
	}
}

func TestListFailsWithoutPermission(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.StartReal(t)
	client := server.Client()
	if err := client.HSet(ctx, "lockstep:{0}:repo:acme/widgets", "repo", "acme/widgets").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Do(ctx, "ACL", "SETUSER", "default", "-hmget").Err(); err != nil {
		t.Fatal(err)
	}
	if page, err := state.NewStore(client, events.DefaultNamespace).List(ctx, "", 0, 10); err == nil {
		t.Errorf("%+v; want Redis' error", page)
	}
}
