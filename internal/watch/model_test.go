package watch_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lockstep/events"
	"lockstep/internal/watch"
)

// model is the expected state of the registry: watches by repository and key, the stream, and the number of writes by
// remote.
type model struct {
	sets    map[string]map[watch.Key]watch.Watch
	queued  []string
	written map[string]int
}

// set replaces the watches of a repository.
func (m *model) set(repo string, next map[watch.Key]watch.Watch) {
	places := map[string]bool{}
	for _, set := range []map[watch.Key]watch.Watch{m.sets[repo], next} {
		for _, w := range set {
			places[watch.RemoteKey(w.URL)] = true
		}
	}
	for place := range places {
		m.written[place]++
	}
	if m.sets[repo] = next; len(next) == 0 {
		delete(m.sets, repo)
	}
}

// byRemote returns the watches of a remote, in order.
func (m *model) byRemote(place string) (watches []watch.Watch) {
	for _, set := range m.sets {
		for _, w := range set {
			if watch.RemoteKey(w.URL) == place {
				watches = append(watches, w)
			}
		}
	}
	slices.SortFunc(watches, func(a, b watch.Watch) int {
		return cmp.Or(strings.Compare(a.Repo.Key(), b.Repo.Key()), strings.Compare(a.App, b.App), strings.Compare(a.Ref.String(), b.Ref.String()))
	})
	return watches
}

// remembered is a version of a remote's watches that a receiver may have cached.
type remembered struct {
	version string
	written int
}

// change applies an edit of one repository and returns the expected counts, or false if the registry must refuse it.
func (m *model) change(repo string, put map[watch.Key]watch.Watch, remove []watch.Key) (nput, nremoved int, ok bool) {
	now := m.sets[repo]
	next := maps.Clone(now)
	if next == nil {
		next = map[watch.Key]watch.Watch{}
	}
	for _, key := range remove {
		if _, there := next[key]; there {
			nremoved++
		}
		delete(next, key)
	}
	maps.Copy(next, put)
	for key, w := range put {
		was, there := now[key]
		if !there || slices.Contains(remove, key) || fmt.Sprint(was) != fmt.Sprint(w) {
			nput++
		}
		for _, other := range next {
			if events.CanonicalRemote(other.URL) != events.CanonicalRemote(w.URL) {
				return 0, 0, false
			}
		}
	}
	if len(now) == 0 && len(next) > 0 {
		for other := range m.sets {
			if strings.HasPrefix(other, repo+"/") || strings.HasPrefix(repo, other+"/") {
				return 0, 0, false
			}
		}
	}
	switch {
	case maps.EqualFunc(now, next, func(a, b watch.Watch) bool { return fmt.Sprint(a) == fmt.Sprint(b) }):
	case len(next) == 0:
		m.set(repo, nil)
		m.queued = append(m.queued, "removed by force "+repo)
	default:
		m.set(repo, next)
		added, same := 0, 0
		for key, w := range next {
			switch was, existed := now[key]; {
			case !existed:
				added++
			case fmt.Sprint(was) == fmt.Sprint(w):
				same++
			}
		}
		if same < len(now) || 2*added > len(next) {
			m.queued = append(m.queued, "due "+repo)
			break
		}
		for range added {
			m.queued = append(m.queued, "pushed "+repo)
		}
	}
	return nput, nremoved, true
}

// TestRegistryMatchesModel compares the registry with the model after each of a random sequence of operations.
func TestRegistryMatchesModel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := context.Background()
	repos := []string{"acme/a", "acme/a/sub", "acme/b"}
	aKey := rapid.Custom(func(t *rapid.T) watch.Key {
		repo, _ := events.ParseRepoPath(rapid.SampledFrom(repos).Draw(t, "repo"))
		ref, _ := watch.ParseSelector(rapid.SampledFrom([]string{"", "main"}).Draw(t, "ref"))
		return watch.Key{App: rapid.SampledFrom([]string{"ci", "docs"}).Draw(t, "app"), Repo: repo, Ref: ref}
	})
	hosts := []string{"one.example", "two.example"}
	aHost := rapid.SampledFrom([]string{hosts[0], hosts[0], hosts[0], hosts[1]})
	aURL := func(t *rapid.T, repo string) string { // the URL of its path, or one shared with another path
		return "https://" + aHost.Draw(t, "host") + "/" + rapid.SampledFrom([]string{repo, repo, "acme/a"}).Draw(t, "remote")
	}
	var places []string
	for _, host := range hosts {
		for _, repo := range repos {
			places = append(places, host+"/"+repo)
		}
	}
	aWatch := rapid.Custom(func(t *rapid.T) watch.Watch {
		key := aKey.Draw(t, "key")
		return watch.Watch{App: key.App, Repo: key.Repo, Ref: key.Ref, URL: aURL(t, key.Repo.String()),
			Depth: events.Depth(rapid.IntRange(1, 2).Draw(t, "depth"))}
	})
	rapid.Check(t, func(t *rapid.T) {
		if err := b.client.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		m := model{sets: map[string]map[watch.Key]watch.Watch{}, written: map[string]int{}}
		known := map[string][]remembered{} // by remote
		apply := func(put []watch.Watch, remove []watch.Key) {
			before := maps.Clone(m.sets)
			type edit struct {
				put    map[watch.Key]watch.Watch
				remove []watch.Key
			}
			edits := map[string]*edit{}
			for _, repo := range repos {
				edits[repo] = &edit{put: map[watch.Key]watch.Watch{}}
			}
			sound := true
			for i, w := range put {
				edits[w.Repo.Key()].put[w.Key()] = w
				for _, other := range put[:i] {
					sound = sound && (!other.Repo.Equal(w.Repo) || events.CanonicalRemote(other.URL) == events.CanonicalRemote(w.URL))
				}
			}
			for _, key := range remove {
				edits[key.Repo.Key()].remove = append(edits[key.Repo.Key()].remove, key)
			}
			nput, nremoved, err := b.Apply(ctx, put, remove)
			wantPut, wantRemoved, ok := 0, 0, sound
			for _, putting := range []bool{false, true} { // repositories with only removals come first
				for _, repo := range repos {
					if e := edits[repo]; ok && (len(e.put) > 0) == putting {
						p, r, fits := m.change(repo, e.put, e.remove)
						wantPut, wantRemoved, ok = wantPut+p, wantRemoved+r, fits
					}
				}
			}
			if nput != wantPut || nremoved != wantRemoved || (err == nil) != ok {
				t.Fatalf("%d put, %d removed, %v; want %d, %d, %v; before: %v", nput, nremoved, err, wantPut, wantRemoved, ok, before)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) { apply(rapid.SliceOfN(aWatch, 1, 3).Draw(t, "watches"), nil) },
			"remove": func(t *rapid.T) {
				apply(nil, rapid.SliceOfNDistinct(aKey, 1, 4, func(k watch.Key) string { return fmt.Sprint(k) }).Draw(t, "keys"))
			},
			"apply": func(t *rapid.T) {
				apply(rapid.SliceOfN(aWatch, 1, 2).Draw(t, "watches"), rapid.SliceOfNDistinct(aKey, 1, 4, func(k watch.Key) string { return fmt.Sprint(k) }).Draw(t, "keys"))
			},
			"move": func(t *rapid.T) {
				from, to := rapid.SampledFrom(repos).Draw(t, "from"), rapid.SampledFrom(repos).Draw(t, "to")
				url := aURL(t, to)
				fromPath, _ := events.ParseRepoPath(from)
				toPath, _ := events.ParseRepoPath(to)
				want, ok := 0, true
				next := map[watch.Key]watch.Watch{}
				for _, w := range m.sets[from] {
					w.Repo, w.URL = toPath, url
					if from != to || m.sets[from][w.Key()].URL != url {
						want++
					}
					next[w.Key()] = w
				}
				if from != to && want > 0 {
					for key, w := range m.sets[to] {
						next[key] = w
						ok = ok && events.CanonicalRemote(w.URL) == events.CanonicalRemote(url)
					}
					for other := range m.sets {
						ok = ok && (len(m.sets[to]) > 0 || !strings.HasPrefix(other, to+"/") && !strings.HasPrefix(to, other+"/"))
					}
				}
				n, err := b.Move(ctx, fromPath, toPath, url)
				if !ok {
					want = 0
				}
				if n != want || (err == nil) != ok {
					t.Fatalf("move %s %s: %d, %v; want %d, %v", from, to, n, err, want, ok)
				}
				if want > 0 {
					m.set(from, nil)
					m.set(to, next)
					m.queued = append(m.queued, "due "+to)
				}
			},
			"accept": func(t *rapid.T) {
				w := aWatch.Draw(t, "watch")
				place := watch.RemoteKey(w.URL)
				relied := rapid.SampledFrom(append([]remembered{{}}, known[place]...)).Draw(t, "remembered")
				change, err := w.Change("", "/hooks/x", events.Ref{}, "")
				if err != nil {
					t.Fatal(err)
				}
				verdict, err := b.Accept(ctx, watch.Delivery{Versions: map[string]string{place: relied.version}, Changes: []events.Change{change}})
				want := watch.Stale
				if relied.version == "" && len(m.byRemote(place)) == 0 || relied.version != "" && relied.written == m.written[place] {
					want = watch.Accepted
					m.queued = append(m.queued, "pushed "+w.Repo.Key())
				}
				if verdict != want || err != nil {
					t.Fatalf("%s, %v; want %s", verdict, err, want)
				}
			},
			"": func(t *rapid.T) {
				listed := 0
				for _, repo := range repos {
					at, _ := events.ParseRepoPath(repo)
					set, err := b.Of(ctx, at)
					if err != nil {
						t.Fatal(err)
					}
					got := map[watch.Key]watch.Watch{}
					for _, w := range set.Watches {
						got[w.Key()] = w
					}
					if !maps.EqualFunc(got, m.sets[repo], func(a, b watch.Watch) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) || (set.Version == "") != (len(got) == 0) {
						t.Fatalf("%s: version %q, %v\nwant %v", repo, set.Version, got, m.sets[repo])
					}
					listed += len(got)
				}
				for _, place := range places {
					found := b.byRemote("https://" + place)
					if want := m.byRemote(place); fmt.Sprint(found.Watches) != fmt.Sprint(want) || (found.Version == "") != (len(want) == 0) {
						t.Fatalf("at %s: version %q, %v\nwant %v", place, found.Version, found.Watches, want)
					}
					if now := (remembered{found.Version, m.written[place]}); now.version != "" && !slices.Contains(known[place], now) {
						known[place] = append(known[place], now)
					}
				}
				b.checkRemotes(t)
				if page, err := b.List(ctx, watch.Query{}); err != nil || len(page.Watches) != listed {
					t.Fatalf("%d listed, %v; want %d", len(page.Watches), err, listed)
				}
				if got := b.drain(); !slices.Equal(got, m.queued) {
					t.Fatalf("queued %q, want %q", got, m.queued)
				}
				m.queued = nil
			},
		})
	})
}
