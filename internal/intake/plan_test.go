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

// watching is a watch as "app ref", or "app ref@path" for one at a path of its own.
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

// placed is what the registry says when these are watched, in this order.
func placed(watches ...watch.Watch) map[string]watch.RemoteWatches {
	all := map[string]watch.RemoteWatches{}
	for _, w := range watches {
		place := watch.RemoteKey(w.URL)
		all[place] = watch.RemoteWatches{Version: "1", Watches: append(all[place].Watches, w)}
	}
	return all
}

// shown is a change in short.
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

func TestADeliveryComesToOneChangeForEachWatchThatItConcerns(t *testing.T) {
	pushed := func(name string) forge.Event {
		return forge.Event{Kind: forge.Pushed, Ref: ref(t, name), After: commit}
	}
	to := func(name, main string) forge.Event {
		e := pushed(name)
		e.Default = ref(t, main)
		return e
	}
	moved := forge.Event{Kind: forge.Moved, Repo: repo(t, "acme/gadgets"), URL: gadgets, From: repo(t, "acme/widgets"), FromURL: widgets}
	auto := &forge.Auto{App: "search", Credential: "bot", URLs: []string{"https://example.com/acme/"}}
	for name, tc := range map[string]struct {
		events  []forge.Event // of widgets at its URL unless they say otherwise
		watches []string      // "app ref" or "app ref@path", of widgets
		there   []string      // of gadgets
		url     string        // of the watches of widgets; "" for widgets
		auto    *forge.Auto
		mark    bool // the watches were made by themselves
		want    []string
		ignored string
		watch   string // watched from now on
	}{
		"a push to a branch that one app watches": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"},
			want: []string{"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"to one that several watch, each in its way": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main", "docs refs/tags/v*", "scan refs/heads/*", "search "},
			want: []string{
				"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/main app=scan credential=scan-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets app=search credential=search-token url=" + widgets + " watched", // it may be the default branch
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
		"to what the forge says is the default branch": {
			events: []forge.Event{to("main", "main")}, watches: []string{"docs ", "scan main"},
			want: []string{
				"pushed acme/widgets app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/main app=scan credential=scan-token after=commit url=" + widgets + " watched",
			},
		},
		"to what it says is not": {
			events: []forge.Event{to("next", "main")}, watches: []string{"docs "}, ignored: "nobody watches refs/heads/next of acme/widgets",
		},
		"to a branch of one that would be watched from its default branch on": {
			events: []forge.Event{to("next", "main")}, auto: auto, ignored: "nobody watches acme/widgets",
		},
		"to a ref that nobody watches": {
			events: []forge.Event{pushed("refs/tags/v1")}, watches: []string{"docs ", "docs main"},
			ignored: "nobody watches refs/tags/v1 of acme/widgets",
		},
		"to several refs, of which the default branch may be any": {
			events: []forge.Event{pushed("main"), pushed("next"), pushed("refs/tags/v1")}, watches: []string{"docs ", "scan next"},
			want: []string{
				"pushed acme/widgets app=docs credential=docs-token url=" + widgets + " watched",
				"pushed acme/widgets ref=refs/heads/next app=scan credential=scan-token after=commit url=" + widgets + " watched",
			},
		},
		"to more refs than the forge says": {
			events: []forge.Event{{Kind: forge.Pushed}}, watches: []string{"docs main", "scan "},
			want: []string{"due acme/widgets"},
		},
		"to a repository that nobody watches": {
			events: []forge.Event{pushed("main")}, ignored: "nobody watches acme/widgets",
		},
		"to one that is watched from its first push on": {
			events: []forge.Event{pushed("main"), pushed("next")}, auto: auto, watch: "search acme/widgets " + widgets + " bot",
		},
		"to one that would be, were it not a tag": {
			events: []forge.Event{pushed("refs/tags/v1")}, auto: auto, ignored: "nobody watches acme/widgets",
		},
		"to one that would be, were it elsewhere": {
			events: []forge.Event{pushed("main")}, auto: &forge.Auto{App: "search", URLs: []string{"https://example.com/others/"}},
			ignored: "nobody watches acme/widgets",
		},
		"to one that is watched by itself": {
			events: []forge.Event{pushed("main")}, auto: auto, watches: []string{"search main"}, mark: true,
			want: []string{"pushed acme/widgets ref=refs/heads/main app=search credential=search-token after=commit url=" + widgets + " watched foreign"},
		},
		"to the repository of that name at another forge": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://example.org/acme/widgets",
			ignored: "nobody watches acme/widgets",
		},
		"to one that is watched at a path of its own": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main@mirror/w"}, auto: auto,
			want: []string{"pushed mirror/w ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched"},
		},
		"to one that is watched at two paths": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main", "docs main@mirror/w", "scan @mirror/w"},
			want: []string{
				"pushed acme/widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed mirror/w ref=refs/heads/main app=docs credential=docs-token after=commit url=" + widgets + " watched",
				"pushed mirror/w app=scan credential=scan-token url=" + widgets + " watched",
			},
		},
		"to more refs than the forge says, of one that is watched at two paths": {
			events: []forge.Event{{Kind: forge.Pushed}}, watches: []string{"docs main", "docs @mirror/w", "scan @mirror/w"},
			want: []string{"due acme/widgets", "due mirror/w"},
		},
		"at another port, which is another forge": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://example.com:8443/acme/widgets",
			ignored: "nobody watches acme/widgets",
		},
		"to one that is watched by another spelling of its URL": {
			events: []forge.Event{pushed("main")}, watches: []string{"docs main"}, url: "https://EXAMPLE.com:443/Acme/Widgets",
			want: []string{"pushed Acme/Widgets ref=refs/heads/main app=docs credential=docs-token after=commit url=https://EXAMPLE.com:443/Acme/Widgets watched"},
		},
		"to one that is watched by SSH": {
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
		"a branch deleted of one that is watched at three paths": {
			events:  []forge.Event{{Kind: forge.RefDeleted, Ref: ref(t, "old")}},
			watches: []string{"docs @a/w", "scan refs/heads/*@a/w", "search old@a/w", "docs @b/w", "search old@c/w"},
			want: []string{
				"removed a/w ref=refs/heads/old credential=scan-token url=" + widgets,
				"removed c/w ref=refs/heads/old credential=search-token url=" + widgets,
			},
		},
		"a branch deleted that nobody watches by name": {
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
		"moved": {
			events: []forge.Event{moved}, watches: []string{"docs ", "scan main"},
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, and fetched by SSH": {
			events: []forge.Event{moved}, watches: []string{"docs "}, url: "ssh://git@example.com:7999/acme/widgets",
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=ssh://git@example.com:7999/acme/gadgets foreign"},
		},
		"moved, and watched under its new name alone": {
			events: []forge.Event{moved}, there: []string{"docs ", "scan @mirror/g"}, want: []string{"due acme/gadgets", "due mirror/g"},
		},
		"moved, and watched at a path of its own": {
			events: []forge.Event{moved}, watches: []string{"docs @mirror/w", "scan @mirror/w"},
			want: []string{"moved mirror/w to=mirror/w credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, and watched at the forge's path and at one of its own": {
			events: []forge.Event{moved}, watches: []string{"docs ", "scan @mirror/w"},
			want: []string{
				"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign",
				"moved mirror/w to=mirror/w credential=scan-token url=" + gadgets + " foreign",
			},
		},
		"moved, and watched at what is its new path": {
			events: []forge.Event{moved}, watches: []string{"docs @acme/gadgets"},
			want: []string{"moved acme/gadgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, and watched under both names": {
			events: []forge.Event{moved}, watches: []string{"docs "}, there: []string{"scan "},
			want: []string{"moved acme/widgets to=acme/gadgets credential=docs-token url=" + gadgets + " foreign"},
		},
		"moved, and nobody cares": {
			events: []forge.Event{moved}, auto: auto, ignored: "nobody watches acme/widgets or acme/gadgets",
		},
		"spelled another way": {
			events: []forge.Event{{Kind: forge.Moved, Repo: repo(t, "acme/Widgets"), URL: "https://example.com/acme/Widgets.git",
				From: repo(t, "acme/widgets"), FromURL: widgets}},
			watches: []string{"docs ", "scan @mirror/w"}, want: []string{"due acme/widgets", "due mirror/w"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tc.events {
				if e := &tc.events[i]; e.Repo.IsZero() {
					e.Repo, e.URL = repo(t, "acme/widgets"), widgets
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
			plan := intake.NewPlan(forge.Source{Name: "hub", Auto: tc.auto}, d, placed(watches...))
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
				t.Errorf("watched from now on: %q, want %q", autos, tc.watch)
			}
		})
	}
}

func TestADataCentersTwoURLsAreOneRemote(t *testing.T) {
	e := forge.Event{Kind: forge.Pushed, Repo: repo(t, "prj/widgets"), URL: "https://dc.example.com/scm/prj/widgets.git", Ref: ref(t, "main"), After: commit}
	overSSH, overHTTP := watching(t, "docs main", "ssh://git@dc.example.com:7999/prj/widgets.git"), watching(t, "docs main", e.URL)
	plan := intake.NewPlan(forge.Source{Name: "dc"}, forge.Delivery{ID: "d", Events: []forge.Event{e}}, placed(overSSH, overHTTP))
	if len(plan.Changes) != 2 || plan.Changes[0].URL != overSSH.URL || plan.Changes[1].Repo.String() != "scm/prj/widgets" {
		t.Errorf("plan %+v", plan)
	}
}

func TestAnIDThatIsTooLongIsHashedAndStaysTheSame(t *testing.T) {
	e := forge.Event{Kind: forge.Pushed, Repo: repo(t, "acme/widgets"), URL: widgets, Ref: ref(t, "main"), After: commit}
	watched := placed(watching(t, "docs main", widgets), watching(t, "scan main", widgets))
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

func TestADeliveryOfTooManyChangesHasTheRemoteAskedInstead(t *testing.T) {
	var d forge.Delivery
	var watches []watch.Watch
	for i := range 100 {
		d.Events = append(d.Events, forge.Event{Kind: forge.Pushed, Repo: repo(t, "acme/widgets"), URL: widgets, Ref: ref(t, fmt.Sprintf("branch-%d", i)), After: commit})
		watches = append(watches, watching(t, fmt.Sprintf("app-%d refs/heads/*@mirror/w%d", i, i%2), widgets))
	}
	plan := intake.NewPlan(forge.Source{Name: "hub"}, d, placed(watches...))
	if len(plan.Changes) != 2 || plan.Changes[0].Type != events.ChangeDue || plan.Changes[1].Repo.Equal(plan.Changes[0].Repo) {
		t.Errorf("%d changes, the first %+v", len(plan.Changes), plan.Changes[0])
	}
}

func BenchmarkPlan(b *testing.B) {
	path, _ := events.ParseRepoPath("acme/widgets")
	main, _ := events.ParseRef("main")
	w, err := watch.New(watch.Watch{App: "docs", URL: widgets})
	if err != nil {
		b.Fatal(err)
	}
	d := forge.Delivery{ID: "d", Events: []forge.Event{{Kind: forge.Pushed, Repo: path, URL: widgets, Ref: main, After: commit}}}
	watched := placed(w)
	for b.Loop() {
		intake.NewPlan(forge.Source{Name: "hub"}, d, watched)
	}
}
