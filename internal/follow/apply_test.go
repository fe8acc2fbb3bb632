package follow

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
)

// copies is a volume with copies of a reader's repositories, by path.
type copies map[string]volume.Published

func (c copies) Repos() iter.Seq2[events.RepoPath, error] {
	return func(yield func(events.RepoPath, error) bool) {
		for path := range c {
			if repo, err := events.ParseRepoPath(path); !yield(repo, err) {
				return
			}
		}
	}
}

func (c copies) Published(repo events.RepoPath) (volume.Published, bool, error) {
	p, here := c[repo.String()]
	return p, here, nil
}

func (c copies) Locate(repo events.RepoPath, ref events.Ref) (volume.Located, bool, error) {
	commit, here := c[repo.String()].Commits[ref]
	return volume.Located{Ref: ref, Commit: commit, Depth: 1}, here, nil
}

// newFollower returns a follower of a reader with copies of acme/widgets at main, which it reads. requested are its changes. It waits
// for each request to the reader.
func newFollower(t *testing.T, handle http.HandlerFunc) (f *Follower, requested *[]events.Change) {
	t.Helper()
	r, requested := newReader(t, handle), new([]events.Change)
	main := testenv.Must(events.ParseRef("main"))(t)
	here := copies{"acme/widgets": {Remote: r.GitURLs() + "acme/widgets.git", Plain: main, Commits: map[events.Ref]string{main: strings.Repeat("a", 40)}}}
	f, err := New(Config{
		Reader: r, Volume: here, Record: &Record{}, Log: slog.New(slog.DiscardHandler),
		Publish: func(_ context.Context, change events.Change) error {
			*requested = append(*requested, change)
			return nil
		},
		Purge: func(context.Context, events.RepoPath) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.ask = func(_ context.Context, request func() func()) { request()() }
	return f, requested
}

// waitOut lets the time pass for which the reader must have shown no more of a repository.
func (f *Follower) waitOut(repo events.RepoPath) {
	if at := f.gone[repo.Key()]; !at.IsZero() && !at.Equal(knownGone) {
		f.gone[repo.Key()] = at.Add(-removeAfter)
	}
}

// TestOnlyTheReaderRemoves has a server in front of the reader, or the reader, say that there is no repository.
func TestOnlyTheReaderRemoves(t *testing.T) {
	t.Parallel()
	const listed = `{"repos":[{"repo":"acme/widgets","refs":[{"ref":"refs/heads/main","commit":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","default":true}]}]}`
	for name, tc := range map[string]struct {
		list    string // response to the second list, with its status
		refs    string // also to later requests
		removed bool   // a result says that the repository was removed
		want    int    // removals
	}{
		"the reader":                             {list: `200 {"repos":[]}`, refs: `404 {"error":"not found"}`, want: 1},
		"the reader's results":                   {list: `503 {}`, refs: `404 {"error":"not found"}`, removed: true, want: 1},
		"a proxy with JSON for all":              {list: `404 {"error":"no route"}`, refs: `404 {"error":"no route"}`},
		"a proxy with JSON for the refs":         {list: "200 " + listed, refs: `404 {"error":"no route"}`},
		"a proxy with HTML":                      {list: "404 <html>", refs: "404 <html>"},
		"a proxy with HTML after a list":         {list: `200 {"repos":[]}`, refs: "404 <html>"},
		"a proxy whose success is JSON":          {list: `200 {"status":"maintenance"}`, refs: `404 {"error":"no route"}`},
		"a proxy whose success is HTML":          {list: "200 <html>", refs: "200 <html>"},
		"a proxy that lists nothing, in vain":    {list: `200 {"repos":[]}`, refs: `200 {"refs":[]}`},
		"a proxy, and a result of the removal":   {list: "502 ", refs: "502 ", removed: true},
		"a proxy, and a cut off list":            {list: `200 {"repos":[`, refs: `404 {"error":"no route"}`},
		"a proxy that asks for a login, in HTML": {list: "401 <html>", refs: "401 <html>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, refs := "200 "+listed, ""
			f, requested := newFollower(t, func(w http.ResponseWriter, r *http.Request) {
				text := list
				if strings.HasSuffix(r.URL.Path, "/refs") {
					text = refs
				}
				status, body, _ := strings.Cut(text, " ")
				code, _ := strconv.Atoi(status)
				w.WriteHeader(code)
				fmt.Fprint(w, body)
			})
			repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
			f.position.frame("c1")
			f.list(t.Context(), true)
			if len(*requested) > 0 {
				t.Fatalf("%v", *requested)
			}
			list, refs = tc.list, tc.refs
			for range 3 {
				if tc.removed {
					f.follow(t.Context(), events.Result{Type: events.ResultRemoved, Repo: repo})
				} else {
					f.compare(t.Context(), repo) // as after a failed sync
				}
				f.list(t.Context(), false)
				f.checkMissing(t.Context())
				f.waitOut(repo)
			}
			got := 0
			for _, change := range *requested {
				if change.Type == events.ChangeRemoved && change.Ref.IsZero() && !change.Force {
					got++
				} else {
					t.Errorf("requested %+v", change)
				}
			}
			if min(got, 1) != tc.want {
				t.Errorf("%d removals requested, want %d", got, tc.want)
			}
		})
	}
}

// TestFormerDefaultBranch goes on under its own name if the token reads it still, but no longer as the default branch.
func TestFormerDefaultBranch(t *testing.T) {
	t.Parallel()
	f, requested := newFollower(t, func(http.ResponseWriter, *http.Request) {})
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	refs := []Ref{{Ref: testenv.Must(events.ParseRef("main"))(t), Commit: strings.Repeat("a", 40)}}
	kinds := func() (kinds []string) {
		for _, change := range *requested {
			kinds = append(kinds, strings.Split(string(change.Type), ".")[2]+" "+change.Ref.String())
		}
		*requested = nil
		return kinds
	}
	f.compareWith(t.Context(), repo, refs)
	if got, want := kinds(), []string{"pushed refs/heads/main"}; !slices.Equal(got, want) {
		t.Errorf("at once: %q, want %q", got, want)
	}
	f.waitOut(repo)
	f.compareWith(t.Context(), repo, refs)
	if got, want := kinds(), []string{"pushed refs/heads/main", "removed refs/heads/main", "pushed refs/heads/main"}; !slices.Equal(got, want) {
		t.Errorf("later: %q, want %q", got, want)
	}
}

// TestListOfASlowReader asks for smaller pages until the reader, or what is before it, answers in time.
func TestListOfASlowReader(t *testing.T) {
	t.Parallel()
	const repos = 2 * minPage
	r := newReader(t, func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		after, _ := strconv.Atoi(r.URL.Query().Get("after"))
		switch {
		case limit == maxPage:
			w.WriteHeader(http.StatusGatewayTimeout)
			fmt.Fprint(w, `{"error":"ask for a smaller one"}`)
			return
		case limit > minPage:
			fmt.Fprint(w, `{"repos":[`) // as far as it is
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		var texts []string
		for i := range limit {
			texts = append(texts, fmt.Sprintf(`{"repo":"acme/r%d","refs":[]}`, after+i))
		}
		next := ""
		if after+limit < repos {
			next = fmt.Sprintf(`,"next":"%d"`, after+limit)
		}
		fmt.Fprintf(w, `{"repos":[%s]%s}`, strings.Join(texts, ","), next)
	})
	r.timeout = time.Second
	got, err := r.Repos(t.Context())
	if err != nil || len(got) != repos {
		t.Errorf("%d repositories, %v", len(got), err)
	}
}

// TestListOfAnAPIToken has no refs; each list compares them nevertheless.
func TestListOfAnAPIToken(t *testing.T) {
	t.Parallel()
	commit := strings.Repeat("a", 40)
	f, requested := newFollower(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.EscapedPath(), "failing"):
			http.Error(w, `{"error":"not found"}`, http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, "/refs"):
			fmt.Fprintf(w, `{"refs":[{"ref":"refs/heads/main","commit":%q,"default":true}]}`, commit)
		default:
			var failing strings.Builder
			for n := range 2 * maxUnknown {
				fmt.Fprintf(&failing, `,{"repo":"failing/r%d"}`, n)
			}
			fmt.Fprintf(w, `{"repos":[{"repo":"acme/widgets"}%s]}`, failing.String())
		}
	})
	f.position.frame("c1")
	f.list(t.Context(), true)
	f.list(t.Context(), false)
	if len(*requested) > 0 || len(f.repos) != 1 {
		t.Errorf("requested %+v of %d repositories, although all is published", *requested, len(f.repos))
	}
	commit = strings.Repeat("b", 40)
	f.list(t.Context(), false)
	if len(*requested) != 1 || (*requested)[0].Type != events.ChangePushed {
		t.Errorf("requested %+v, want a sync", *requested)
	}
}

// TestBusyReader is asked again no sooner than it says, and apart from other followers.
func TestBusyReader(t *testing.T) {
	t.Parallel()
	f, _ := newFollower(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error":"busy"}`)
	})
	at := map[time.Duration]bool{}
	for range 10 {
		f.listTry = 0
		begin := time.Now()
		f.list(t.Context(), true)
		wait := f.listAt.Sub(begin)
		if wait < 20*time.Second || wait > 30*time.Second {
			t.Errorf("asked again after %v", wait)
		}
		at[wait.Truncate(10*time.Millisecond)] = true
	}
	if len(at) < 3 {
		t.Errorf("asked again at the same times: %v", at)
	}
}
