package watch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/watch"
)

// all returns the watches of all pages of a query, formatted as "repo app ref", and the number of pages.
func (b *bench) all(q watch.Query) (list []string, pages int) {
	b.t.Helper()
	for {
		page, err := b.List(context.Background(), q)
		if err != nil {
			b.t.Fatal(err)
		}
		pages++
		for _, w := range page.Watches {
			list = append(list, strings.TrimSpace(w.Repo.String()+" "+w.App+" "+w.Ref.String()))
		}
		if q.After = page.Next; page.Next == "" {
			return list, pages
		}
	}
}

func TestListPages(t *testing.T) {
	b := newBench(t)
	var want []string
	for i := range 105 { // more than one read returns
		repo := fmt.Sprintf("acme/r%03d", i)
		b.put(of(t, "docs", repo, "main"), of(t, "docs", repo, "refs/tags/v*"), of(t, "Docs2", repo, ""))
		want = append(want, repo+" Docs2", repo+" docs refs/heads/main", repo+" docs refs/tags/v*")
	}
	b.put(of(t, "ci", "Beta/one", ""), of(t, "ci", "beta1/one", ""))
	want = append(want, "Beta/one ci", "beta1/one ci")
	for _, limit := range []int{1, 2, 7, 100, 1000, 0} {
		got, pages := b.all(watch.Query{Limit: limit})
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d watches, want %d", limit, len(got), len(want))
		}
		if limit == 0 {
			limit = 100
		}
		if most := (len(want) + limit - 1) / limit; pages != most {
			t.Errorf("limit %d: %d pages, want %d", limit, pages, most)
		}
	}
	var repos, wantRepos []string
	for repo, err := range b.Repos(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		repos = append(repos, repo.String())
	}
	for _, w := range want {
		repo, _, _ := strings.Cut(w, " ")
		wantRepos = append(wantRepos, repo)
	}
	if wantRepos = slices.Compact(wantRepos); !slices.Equal(repos, wantRepos) {
		t.Errorf("%d repositories, want %d", len(repos), len(wantRepos))
	}
	for name, tc := range map[string]struct {
		q    watch.Query
		want []string
	}{
		"a prefix":                 {watch.Query{Prefix: "BETA/"}, []string{"Beta/one ci"}},
		"a prefix of an owner":     {watch.Query{Prefix: "beta"}, []string{"Beta/one ci", "beta1/one ci"}},
		"unmatched prefix":         {watch.Query{Prefix: "zeta"}, nil},
		"a repository":             {watch.Query{Prefix: "acme/r007"}, want[21:24]},
		"an app, one at a time":    {watch.Query{App: "ci", Limit: 1}, []string{"Beta/one ci", "beta1/one ci"}},
		"an app, by prefix":        {watch.Query{App: "ci", Prefix: "beta1"}, []string{"beta1/one ci"}},
		"app without watches":      {watch.Query{App: "nobody"}, nil},
		"after a removed watch":    {watch.Query{After: "acme/r104 dodo x"}, []string{"Beta/one ci", "beta1/one ci"}},
		"after a whole repository": {watch.Query{After: "acme/r104 ~"}, []string{"Beta/one ci", "beta1/one ci"}},
	} {
		if got, _ := b.all(tc.q); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	for _, after := range []string{"x", "acme/widgets", "acme/.. docs ", " "} {
		if _, err := b.List(context.Background(), watch.Query{After: after}); !errors.Is(err, watch.ErrBadAfter) {
			t.Errorf("after %q: %v", after, err)
		}
	}
	if _, err := b.List(context.Background(), watch.Query{Limit: 1001}); err == nil {
		t.Error("a limit of 1001 was accepted")
	}
}
