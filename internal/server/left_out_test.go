package server_test

import (
	"context"
	"strings"
	"testing"
)

// TestRefsLeftOutOfARepository lists what watches leave out, for one repository and in the list.
func TestRefsLeftOutOfARepository(t *testing.T) {
	t.Parallel()
	url, redisServer := startRepos(t)
	const left = `[{"app":"ci","ref":"refs/heads/*","reason":"max-refs","max_refs":100,"count":12,"refs":["refs/heads/old"]},` +
		`{"app":"ci","ref":"refs/heads/*","reason":"name","count":1,"refs":["refs/heads/long"]}]`
	if err := redisServer.Client().HSet(context.Background(), "lockstep:{0}:repo:acme/widgets", "repo", "acme/widgets", "leftout", left).Err(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/acme/widgets", ""} {
		if _, text := do(t, "GET", url+"/api/v1/repos"+path, "", nil); !strings.Contains(text, `"left_out":`+left) {
			t.Errorf("%q: %s", path, text)
		}
	}
}
