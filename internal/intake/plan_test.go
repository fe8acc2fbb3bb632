package intake_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/forge"
	"lockstep/internal/intake"
	"lockstep/internal/watch"
)

const (
	widgets = "https://example.com/acme/widgets.git"
	gadgets = "https://example.com/acme/gadgets.git"
)

var commit = strings.Repeat("c", 40)

func repo(t *testing.T, name string) events.RepoPath {
	t.Helper()
	if name == "" {
		return events.RepoPath{}
	}
	path, err := events.ParseRepoPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func ref(t *testing.T, name string) events.Ref {
	t.Helper()
	r, err := events.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// watching parses a watch from "app ref" or "app ref@path".
func watching(t *testing.T, what, url string) watch.Watch {
	t.Helper()
	what, own, _ := strings.Cut(what, "@")
	app, selector, _ := strings.Cut(what, " ")
	s, err := watch.ParseSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	w, err := watch.New(watch.Watch{App: app, Repo: repo(t, own), URL: url, Ref: s, Credential: app + "-token"})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// byRemote returns watches as the registry does, in this order.
func byRemote(watches ...watch.Watch) map[string]watch.RemoteWatches {
	all := map[string]watch.RemoteWatches{}
	for _, w := range watches {
		place := watch.RemoteKey(w.URL)
		all[place] = watch.RemoteWatches{Version: "1", Watches: append(all[place].Watches, w)}
	}
	return all
}

// shown formats a change briefly.
func shown(c events.Change) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(string(c.Type), "lockstep.change."), ".")
	parts := []string{kind, c.Repo.String()}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("to", c.To.String())
	add("ref", c.Ref.String())
	add("app", c.App)
	add("credential", c.Credential)
	add("after", strings.ReplaceAll(c.After, commit, "commit"))
	add("url", c.URL)
	if c.Watched {
		parts = append(parts, "watched")
	}
	if c.Foreign {
		parts = append(parts, "foreign")
	}
	if c.Force {
		parts = append(parts, "force")
	}
	return strings.Join(parts, " ")
}

func TestNewPlan(t *testing.T) {
	pushed := func(name string) forge.Event {
		return forge.Event{Kind: forge.Pushed, Ref: ref(t, name), After: commit}
	}
	to := func(name, main string) forge.Event {
		e := pushed(name)
		e.Default = ref(t, main)
		return e
	}
	onTwoHosts := forge.Event{Kind: forge.Pushed, Repo: repo(t, "acme/widgets"), Ref: ref(t, "main"), After: commit,
		URLs: []string{widgets, "ssh://git@ssh.example.com:2222/acme/widgets.git"}}
	moved := forge.Event{Kind: forge.Moved, Repo: repo(t, "acme/gadgets"), URLs: []string{gadgets}, From: repo(t, "acme/widgets"), FromURLs: []string{widgets}}
	auto := &forge.Auto{App: "search", Credential: "bot", URLs: []string{"https://example.com/acme/"}}
	for name, tc := range map[string]struct {
		events  []forge.Event // of widgets at its URL by default
		watches []string      // "app ref" or "app ref@path", of widgets
		there   []string      // of gadgets
		url     string        // of the watches of widgets; "" for widgets
		auto    *forge.Auto
		mark    bool // the watches are automatic
		want    []string
		ignored string
		watch   string // new automatic watch
	}{
		"a push to a branch that one app watches": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"},
			want: []string{"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"to one that apps watch by name, pattern and default": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main", "docs refs/tags/v*", "scan refs/heads/*", "search "},
			want: []string{
				"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/main app=scan credential=scan-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets app=search credential=search-token url=" + widgets + " watched", // may be the default branch
			},
		},
		"to one that an app watches by name and by pattern": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs refs/heads/*", "docs main"},
			want: []string{"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"to a tag": {
			events: []forge.Event{pushed("refs/tags/v1")}, watches: []string{"docs ", "docs refs/tags/v*"},
			want: []string{"pushed acme/widgets ref=refs/tags/v1 app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"to the default branch": {
			events: []forge.Event{to("main", "main")}, watches: []string{"docs ", "scan main"},
			want: []string{
				"pushed acme/widgets app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/main app=scan credential=scan-token after=commit url=" + widgets + " watched",
			},
		},
		"to another branch than the default one": {
			events: []forge.Event{to("next", "main")}, watches: []string{"docs "}, ignored: "nobody watches refs/heads/next of acme/widgets",
		},
		"to another branch of a repository with automatic watches": {
			events: []forge.Event{to("next", "main")}, auto: auto, ignored: "nobody watches acme/widgets",
		},
		"to an unwatched ref": {
			events: []forge.Event{pushed("refs/tags/v1")}, watches: []string{"docs ", "docs main"},
			ignored: "nobody watches refs/tags/v1 of acme/widgets",
		},
		"to several refs with an unknown default branch": {
			events: []forge.Event{pushed("main"), pushed("next"), pushed("refs/tags/v1")}, watches: []string{"docs ", "scan next"},
			want: []string{
				"pushed acme/widgets app=docs credential=docs-token url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/next app=scan credential=scan-token after=commit url=" + widgets + " watched",
			},
		},
		"to unnamed refs": {
			events: []forge.Event{{Kind: forge.Pushed}}, watches: []string{"docs main", "scan "},
			want: []string{"due acme/widgets"},
		},
		"to an unwatched repository": {
			events: []forge.Event{pushed("main")}, ignored: "nobody watches acme/widgets",
		},
		"to an unwatched repository with automatic watches": {
			events: []forge.Event{pushed("main"), pushed("next")}, auto: auto, watch: "search acme/widgets " + widgets + " bot",
		},
		"to a tag of an unwatched repository with automatic watches": {
			events: []forge.Event{pushed("refs/tags/v1")}, auto: auto, ignored: "nobody watches acme/widgets",
		},
		"to an unwatched repository outside the automatic URLs": {
			events: []forge.Event{pushed("main")}, auto: &forge.Auto{App: "search", URLs: []string{"https://example.com/others/"}},
			ignored: "nobody watches acme/widgets",
		},
		"to an automatically watched repository": {
			events: []forge.Event{pushed("main")}, auto: auto, watches: []string{"search main"}, mark: true,
			want: []string{"pushed acme/widgets ref=refs/heads/main app=search credential=search-token after=commit url=" + widgets + " watched foreign"},
		},
		"to a repository with the same name on another forge": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://example.org/acme/widgets",
			ignored: "nobody watches acme/widgets",
		},
		"watched at another path": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main@mirror/w"}, auto: auto,
			want: []string{"pushed mirror/w ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"watched at two paths": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main", "docs main@mirror/w", "scan @mirror/w"},
			want: []string{
				"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed mirror/w ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed mirror/w app=scan credential=scan-token url=" + widgets + " watched",
			},
		},
		"to unnamed refs, watched at two paths": {
			events: []forge.Event{{Kind: forge.Pushed}}, watches: []string{"docs main", "docs @mirror/w", "scan @mirror/w"},
			want: []string{"due acme/widgets", "due mirror/w"},
		},
		"at another port, which is another forge": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://example.com:8443/acme/widgets",
			ignored: "nobody watches acme/widgets",
		},
		"watched by another spelling of the URL": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://EXAMPLE.com:443/Acme/Widgets",
			want: []string{"pushed Acme/Widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=https://EXAMPLE.com:443/Acme/Widgets watched"},
		},
		"watched by SSH": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "ssh://git@example.com:7999/acme/widgets.git",
			want: []string{"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=ssh://git@example.com:7999/acme/widgets.git watched"},
		},
		"another default branch": {
			events:  []forge.Event{{Kind: forge.DefaultChanged, Ref: ref(t, "next")}},
			watches: []string{"docs main", "scan ", "search "},
			want: []string{
				"pushed acme/widgets app=scan credential=scan-token url=" + widgets + " watched",
				"pushed acme/widgets app=search credential=search-token url=" + widgets + " watched",
			},
		},
		"another default branch, which is watched by name and by pattern": {
			events:  []forge.Event{{Kind: forge.DefaultChanged, Ref: ref(t, "next")}},
			watches: []string{"ci refs/heads/*", "docs next", "release refs/tags/*"},
			want: []string{
				"pushed acme/widgets ref=refs/heads/next app=ci credential=ci-token url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/next app=docs credential=docs-token url=" + widgets + " watched",
			},
		},
		"archived": {
			events: []forge.Event{{Kind: forge.Archived}}, watches: []string{"docs main", "scan "},
			want: []string{"pushed acme/widgets app=scan credential=scan-token url=" + widgets + " watched"},
		},
		"archived, and only a tag of it is watched": {
			events: []forge.Event{{Kind: forge.Archived}}, watches: []string{"docs refs/tags/v1"},
			ignored: "nobody watches the default branch of acme/widgets",
		},
		"a branch deleted": {
			events: []forge.Event{{Kind: forge.RefDeleted, Ref: ref(t, "old")}}, watches: []string{"docs ", "scan refs/heads/*", "search old"},
			want: []string{"removed acme/widgets ref=refs/heads/old credential=scan-token url=" + widgets},
		},
		"a branch deleted, watched at three paths": {
			events:  []forge.Event{{Kind: forge.RefDeleted, Ref: ref(t, "old")}},
			watches: []string{"docs @a/w", "scan refs/heads/*@a/w", "search old@a/w", "docs @b/w", "search old@c/w"},
			want: []string{
				"removed a/w ref=refs/heads/old credential=scan-token url=" + widgets,
				"removed c/w ref=refs/heads/old credential=search-token url=" + widgets,
			},
		},
		"an unwatched branch deleted": {
			events: []forge.Event{{Kind: forge.RefDeleted, Ref: ref(t, "old")}}, watches: []string{"docs ", "scan main"},
			ignored: "nobody watches refs/heads/old of acme/widgets",
		},
		"removed": {
			events: []forge.Event{{Kind: forge.Removed}}, watches: []string{"docs ", "scan main"},
			want: []string{"removed acme/widgets credential=docs-token url=" + widgets},
		},
		"removed, and watched at two paths": {
			events: []forge.Event{{Kind: forge.Removed}}, watches: []string{"docs @a/w", "scan @a/w", "scan @b/w"},
			want: []string{"removed a/w credential=docs-token url=" + widgets, "removed b/w credential=scan-token url=" + widgets},
		},
		"removed at another forge": {
			events: []forge.Event{{Kind: forge.Removed}}, watches: []string{"docs "}, url: "https://example.org/acme/widgets",
			ignored: "nobody watches acme/widgets",
		},
		"push, watched by the other URL that the delivery has": {
			events: []forge.Event{onTwoHosts}, watches: []string{"docs main", "docs main@mirror/w"}, url: "ssh://git@ssh.example.com:2222/acme/widgets",
			want: []string{
				"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=ssh://git@ssh.example.com:2222/acme/widgets watched",
				"pushed mirror/w ref=refs/heads/main app=docs credential=docs-token after=commit url=ssh://git@ssh.example.com:2222/acme/widgets watched",
			},
		},
		"push, another port of the other URL": {
			events: []forge.Event{onTwoHosts}, watches: []string{"docs main"}, url: "ssh://git@ssh.example.com/acme/widgets", ignored: "nobody watches acme/widgets",
		},
		"push to a name that is no path, watched at a path": {
			events:  []forge.Event{{Kind: forge.Pushed, URLs: []string{"https://example.com/acme/My%20W%C3%A9b+%5B1%5D.git"}, Ref: ref(t, "main"), After: commit}},
			watches: []string{"docs main@acme/web"}, url: "https://example.com/Acme/my%20wéb%2B[1]/",
			want: []string{"pushed acme/web ref=refs/heads/main app=docs credential=docs-token after=commit url=https://example.com/Acme/my%20wéb%2B[1]/ watched"},
		},
		"push to a name that is no path, unwatched": {
			events: []forge.Event{{Kind: forge.Pushed, URLs: []string{"https://example.com/acme/My%20Web.git"}}}, auto: auto,
			ignored: "https://example.com/acme/My%20Web.git cannot be watched: no repo given and none can be derived from url: not a repository path: " +
				"the URL's path: byte ' ' is not allowed; use letters, digits and ._-~+",
		},
		"moved": {
			events: []forge.Event{moved}, watches: []string{"docs ", "scan main"},
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, and fetched by SSH": {
			events: []forge.Event{moved}, watches: []string{"docs "}, url: "ssh://git@example.com:7999/acme/widgets",
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=ssh://git@example.com:7999/acme/gadgets foreign"},
		},
		"moved, watched only under the new name": {
			events: []forge.Event{moved}, there: []string{"docs ", "scan @mirror/g"}, want: []string{"due acme/gadgets", "due mirror/g"},
		},
		"moved, watched at another path": {
			events: []forge.Event{moved}, watches: []string{"docs @mirror/w", "scan @mirror/w"},
			want: []string{"moved mirror/w to=mirror/w credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, watched at the forge's path and at another one": {
			events: []forge.Event{moved}, watches: []string{"docs ", "scan @mirror/w"},
			want: []string{
				"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign",
				"moved mirror/w to=mirror/w credential=scan-token url=" + gadgets + " foreign",
			},
		},
		"moved, watched at the new path": {
			events: []forge.Event{moved}, watches: []string{"docs @acme/gadgets"},
			want: []string{"moved acme/gadgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, watched under both names": {
			events: []forge.Event{moved}, watches: []string{"docs "}, there: []string{"scan "},
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved at Azure, watched by another of its URLs": {
			events: []forge.Event{{Kind: forge.Moved, Repo: repo(t, "acme/Shop/_git/new"), URLs: []string{"https://dev.azure.com/acme/Shop/_git/new"},
				From: repo(t, "acme/Shop/_git/old"), FromURLs: []string{"https://dev.azure.com/acme/Shop/_git/old"}}},
			watches: []string{"docs @azure/old"}, url: "https://acme.visualstudio.com/Shop/_git/old", want: []string{"due azure/old"},
		},
		"moved at Azure": {
			events: []forge.Event{{Kind: forge.Moved, Repo: repo(t, "acme/Shop/_git/new"), URLs: []string{"https://dev.azure.com/acme/Shop/_git/new"},
				From: repo(t, "acme/Shop/_git/old"), FromURLs: []string{"https://dev.azure.com/acme/Shop/_git/old"}}},
			watches: []string{"docs @azure/old"}, url: "https://dev.azure.com/acme/Shop/_git/old",
			want: []string{"moved azure/old to=azure/old credential=docs-token url=https://dev.azure.com/acme/Shop/_git/new foreign"},
		},
		"moved, unwatched": {
			events: []forge.Event{moved}, auto: auto, ignored: "nobody watches acme/widgets or acme/gadgets",
		},
		"moved to another spelling": {
			events: []forge.Event{{Kind: forge.Moved, Repo: repo(t, "acme/Widgets"), URLs: []string{"https://example.com/acme/Widgets.git"},
				From: repo(t, "acme/widgets"), FromURLs: []string{widgets}}},
			watches: []string{"docs ", "scan @mirror/w"}, want: []string{"due acme/widgets", "due mirror/w"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.events {
				if e := &tc.events[i]; len(e.URLs) == 0 {
					e.Repo, e.URLs = repo(t, "acme/widgets"), []string{widgets}
				}
			}
			var watches []watch.Watch
			url := widgets
			if tc.url != "" {
				url = tc.url
			}
			for _, what := range tc.watches {
				w := watching(t, what, url)
				w.Auto = tc.mark
				watches = append(watches, w)
			}
			for _, what := range tc.there {
				watches = append(watches, watching(t, what, gadgets))
			}
			d := forge.Delivery{Source: "hub", ID: "d1", Events: tc.events}
			plan := intake.NewPlan(forge.Source{Name: "hub", Auto: tc.auto}, d, byRemote(watches...))
			var got []string
			for i, c := range plan.Changes {
				got = append(got, shown(c))
				if c.ID != fmt.Sprintf("hub/d1/%d", i) || c.Source != "/hooks/hub" {
					t.Errorf("change %d is %s from %s", i, c.ID, c.Source)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("changes\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tc.want, "\n\t"))
			}
			if plan.Ignored != tc.ignored {
				t.Errorf("ignored: %q, want %q", plan.Ignored, tc.ignored)
			}
			var autos string
			for _, w := range plan.Auto {
				autos += strings.Join([]string{w.App, w.Repo.String(), w.URL, w.Credential}, " ")
				if !w.Auto || !w.Ref.IsDefault() {
					t.Errorf("watch %+v", w)
				}
			}
			if autos != tc.watch {
				t.Errorf("automatic watches: %q, want %q", autos, tc.watch)
			}
		})
	}
}

func TestBitbucketDataCenterSSHAndHTTPAreOneRemote(t *testing.T) {
	e := forge.Event{Kind: forge.Pushed, Repo: repo(t, "prj/widgets"), URLs: []string{"https://dc.example.com/scm/prj/widgets.git"}, Ref: ref(t, "main"), After: commit}
	overSSH, overHTTP := watching(t, "docs main", "ssh://git@dc.example.com:7999/prj/widgets.git"), watching(t, "docs main", e.URLs[0])
	plan := intake.NewPlan(forge.Source{Name: "dc"}, forge.Delivery{ID: "d", Events: []forge.Event{e}}, byRemote(overSSH, overHTTP))
	if len(plan.Changes) != 2 || plan.Changes[0].URL != overSSH.URL || plan.Changes[1].Repo.String() != "scm/prj/widgets" {
		t.Errorf("plan %+v", plan)
	}
}

func TestLongDeliveryIDIsHashed(t *testing.T) {
	e := forge.Event{Kind: forge.Pushed, Repo: repo(t, "acme/widgets"), URLs: []string{widgets}, Ref: ref(t, "main"), After: commit}
	watched := byRemote(watching(t, "docs main", widgets), watching(t, "scan main", widgets))
	src := forge.Source{Name: strings.Repeat("s", 100)}
	seen := map[string]bool{}
	for _, id := range []string{strings.Repeat("d", 200), strings.Repeat("d", 199) + "e"} {
		d := forge.Delivery{ID: id, Events: []forge.Event{e}}
		first, again := intake.NewPlan(src, d, watched), intake.NewPlan(src, d, watched)
		for i, c := range first.Changes {
			if len(c.ID) > 255 || c.ID != again.Changes[i].ID {
				t.Errorf("ids %q and %q", c.ID, again.Changes[i].ID)
			}
			seen[c.ID] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d ids of 4 changes", len(seen))
	}
}

func TestTooManyChangesBecomeAPoll(t *testing.T) {
	var d forge.Delivery
	var watches []watch.Watch
	for i := range 100 {
		d.Events = append(d.Events, forge.Event{Kind: forge.Pushed, Repo: repo(t, "acme/widgets"), URLs: []string{widgets}, Ref: ref(t, fmt.Sprintf("branch-%d", i)), After: commit})
		watches = append(watches, watching(t, fmt.Sprintf("app-%d refs/heads/*@mirror/w%d", i, i%2), widgets))
	}
	plan := intake.NewPlan(forge.Source{Name: "hub"}, d, byRemote(watches...))
	if len(plan.Changes) != 2 || plan.Changes[0].Type != events.ChangeDue || plan.Changes[1].Repo.Equal(plan.Changes[0].Repo) {
		t.Errorf("%d changes, the first %+v", len(plan.Changes), plan.Changes[0])
	}
}
