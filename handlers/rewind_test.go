package handlers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// noRewind adds a watch that refuses rewritten history.
func (w *world) noRewind(app, ref string) watch.Watch {
	w.t.Helper()
	return w.watchAs(watch.Watch{App: app, URL: w.git.URL(modelRepo), Depth: events.DepthFull,
		Options: watch.With(signatures.Options{NoRewind: true})}, ref)
}

func (w *world) refused() []string {
	w.t.Helper()
	known := testenv.Must(w.states.Load(w.t.Context(), w.repo()))(w.t)
	return known.Summary(time.Now()).Refused
}

// rewound is a repository with main, dev and the tag v1 at the last of three commits, which are published.
func rewound(t *testing.T, ref string) (w *world, commits []string) {
	w = newWorld(t)
	commits = w.history(4)
	w.force(commits[2])
	w.branch(commits[2], "dev")
	must(t, w.git.SetRef(t.Context(), modelRepo, "refs/tags/v1", commits[2]))
	w.watch("docs", "")
	w.noRewind("deploy", ref)
	w.settle("a")
	return w, commits
}

// TestNoRewindOutlivesWhatIsPublished takes away what is published, in the ways that somebody has who may push, and brings back an older
// commit. A newer one is accepted.
func TestNoRewindOutlivesWhatIsPublished(t *testing.T) {
	for name, tc := range map[string]struct {
		watched, ref string // ref is rewound
		published    string // name
		rewind       func(w *world, commits []string)
	}{
		"a branch, deleted": {"dev", "refs/heads/dev", "widgets@dev", func(w *world, commits []string) {
			w.deleteRef("refs/heads/dev")
			w.looks("b")
			w.branch(commits[1], "dev")
		}},
		"a branch whose deletion is announced": {"dev", "refs/heads/dev", "widgets@dev", func(w *world, commits []string) {
			w.deleteRef("refs/heads/dev")
			w.mustHandle("b-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), URL: w.git.URL(modelRepo), Ref: mustRef("dev")})
			w.branch(commits[1], "dev")
		}},
		"a tag, moved": {"refs/tags/v*", "refs/tags/v1", "widgets@refs%2Ftags%2Fv1", func(w *world, commits []string) {
			w.deleteRef("refs/tags/v1")
			w.looks("b")
			must(w.t, w.git.SetRef(w.t.Context(), modelRepo, "refs/tags/v1", commits[1]))
		}},
		"another default branch, which is older": {"", "refs/heads/old", "widgets", func(w *world, commits []string) {
			w.branch(commits[1], "old")
			must(w.t, w.git.SetHead(modelRepo, "old"))
		}},
		"the default branch, while another one was it": {"", "refs/heads/main", "widgets", func(w *world, commits []string) {
			must(w.t, w.git.SetHead(modelRepo, "dev"))
			w.looks("b")
			w.force(commits[1])
			must(w.t, w.git.SetHead(modelRepo, "main"))
		}},
		"the default branch, left behind by another one": {"", "refs/heads/main", "widgets", func(w *world, commits []string) {
			must(w.t, w.git.SetRef(w.t.Context(), modelRepo, "refs/heads/dev", commits[3]))
			must(w.t, w.git.SetHead(modelRepo, "dev"))
			w.mustHandle("b-0", events.Change{URL: w.git.URL(modelRepo), App: "deploy", Depth: events.DepthFull, Watched: true})
			must(w.t, w.git.SetHead(modelRepo, "main"))
		}},
		"a branch that had the plain name": {"main", "refs/heads/main", "widgets@main", func(w *world, commits []string) {
			must(w.t, w.git.SetHead(modelRepo, "dev"))
			w.mustHandle("b-0", events.Change{URL: w.git.URL(modelRepo), App: "docs", Watched: true})
			w.force(commits[1])
		}},
		"a branch whose tree is gone": {"dev", "refs/heads/dev", "widgets@dev", func(w *world, commits []string) {
			dir := testenv.Must(filepath.EvalSymlinks(filepath.Join(w.root, "acme/widgets@dev")))(w.t)
			must(w.t, os.RemoveAll(dir))
			w.branch(commits[1], "dev")
		}},
		"a branch, refused and deleted": {"dev", "refs/heads/dev", "widgets@dev", func(w *world, commits []string) {
			w.branch(commits[1], "dev")
			w.looks("b")
			w.deleteRef("refs/heads/dev")
			w.looks("c")
			w.branch(commits[1], "dev")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, commits := rewound(t, tc.watched)
			tc.rewind(w, commits)
			w.looks("y")
			if at := strings.Fields(w.links()); slices.Contains(at, tc.published+"=1") || slices.Contains(at, tc.published+"=0") {
				t.Errorf("published: %s", at)
			}
			if got := w.refused(); !slices.Contains(got, tc.ref) {
				t.Errorf("refused %q, want %s; published %s", got, tc.ref, w.links())
			}
			w.branch(commits[3], "old", "dev", "main")
			must(t, w.git.SetRef(t.Context(), modelRepo, "refs/tags/v1", commits[3]))
			w.looks("z")
			if at := strings.Fields(w.links()); !slices.Contains(at, tc.published+"=3") || len(w.refused()) > 0 {
				t.Errorf("published after a newer commit: %s, refused %q", at, w.refused())
			}
		})
	}
}

// TestNoRewindOfThePlainNameOfAFormerDefaultBranch has another default branch refused, so that the former one, which another app
// watches by its name without rules, still has the plain name.
func TestNoRewindOfThePlainNameOfAFormerDefaultBranch(t *testing.T) {
	for name, tc := range map[string]struct {
		refused string
		rewind  func(w *world, commits []string)
	}{
		"pushed to by force": {"refs/heads/main", func(w *world, commits []string) {
			w.force(commits[0])
			w.mustHandle("c-0", events.Change{URL: w.git.URL(modelRepo), Ref: mustRef("main"), App: "docs", Watched: true})
		}},
		"replaced by one that is older": {"refs/heads/dev", func(w *world, commits []string) {
			w.force(commits[3])
			w.settle("c")
			must(w.t, w.git.SetHead(modelRepo, "dev"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			commits := w.history(4)
			w.force(commits[2])
			w.branch(commits[2], "dev")
			w.branch(commits[1], "old")
			w.watch("docs", "main")
			w.noRewind("deploy", "")
			w.settle("a")
			must(t, w.git.SetHead(modelRepo, "old"))
			w.settle("b")
			tc.rewind(w, commits)
			want := strings.Split(w.links(), " ")[0]
			w.settle("d")
			if got := strings.Split(w.links(), " ")[0]; got != want || want < "widgets=2" {
				t.Errorf("published %s, want %s to stay", got, want)
			}
			if got := w.refused(); !slices.Contains(got, tc.refused) {
				t.Errorf("refused %q, want %s", got, tc.refused)
			}
		})
	}
}

// TestNoRewindOfARepositoryThatIsCreatedAgain deletes the repository, which removes the clone, and creates it with another history.
func TestNoRewindOfARepositoryThatIsCreatedAgain(t *testing.T) {
	w, _ := rewound(t, "")
	must(t, w.git.Delete(modelRepo))
	if r := w.mustHandle("b-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), URL: w.git.URL(modelRepo)}); r.Type != events.ResultRemoved || w.published() {
		t.Fatalf("%+v", r)
	}
	w.create(map[string]string{"a": "0"})
	w.looks("c")
	if got := w.refused(); w.published() || !slices.Equal(got, []string{"refs/heads/main"}) {
		t.Errorf("refused %q, published %q", got, w.links())
	}
}

// TestNoRewindOfARenamedRepository brings the older commit to the new path.
func TestNoRewindOfARenamedRepository(t *testing.T) {
	for name, before := range map[string]func(w *world){
		"a branch that was deleted": func(w *world) {
			w.deleteRef("refs/heads/dev")
			w.looks("b")
		},
		"without a plain name": func(w *world) {
			w.unwatch(watch.Watch{App: "docs", Repo: w.repo()})
			w.deleteRef("refs/heads/dev")
			w.looks("b")
		},
		"without a clone": func(w *world) {
			must(w.t, w.git.Rename(modelRepo, "acme/gadgets"))
			w.mustHandle("b-0", events.Change{Type: events.ChangeRemoved, Repo: w.repo(), URL: w.git.URL(modelRepo)})
			must(w.t, w.git.Rename("acme/gadgets", modelRepo))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, commits := rewound(t, "dev")
			before(w)
			must(t, w.git.Rename(modelRepo, "acme/gadgets"))
			to := path(t, "acme/gadgets")
			w.mustHandle("c-0", events.Change{Type: events.ChangeMoved, Repo: w.repo(), To: to, URL: w.git.URL("acme/gadgets")})
			must(t, w.git.SetRef(t.Context(), "acme/gadgets", "refs/heads/dev", commits[1]))
			r := w.mustHandle("d-0", events.Change{
				Repo: to, URL: w.git.URL("acme/gadgets"), Ref: mustRef("dev"), App: "deploy", Depth: events.DepthFull, Watched: true,
			})
			if r.Type != events.ResultFailed || r.Class != events.ClassRefused || !strings.Contains(r.Error, "no_rewind") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestNoRewindStartsAfresh removes the watch and adds it again.
func TestNoRewindStartsAfresh(t *testing.T) {
	w, commits := rewound(t, "dev")
	of := watch.Watch{App: "deploy", Repo: w.repo(), Ref: selectorOf("dev")}
	w.deleteRef("refs/heads/dev")
	w.looks("b")
	w.unwatch(of)
	w.looks("c")
	w.noRewind("deploy", "dev")
	w.branch(commits[1], "dev")
	w.looks("d")
	if at := w.links(); !strings.Contains(at, "widgets@dev=1") || len(w.refused()) > 0 {
		t.Errorf("published %s, refused %q", at, w.refused())
	}
}

// TestNoRewindBeforeAnythingIsRecorded has nothing in the state, as if the option was added just now, when an older branch becomes
// the default one.
func TestNoRewindBeforeAnythingIsRecorded(t *testing.T) {
	for _, hasName := range []bool{false, true} { // of its own
		t.Run(fmt.Sprint(hasName), func(t *testing.T) {
			w, commits := rewound(t, "")
			w.branch(commits[1], "old")
			if hasName {
				w.watch("docs", "old")
				w.settle("b")
			}
			fields, _ := w.stored()
			for name := range fields {
				if strings.HasPrefix(name, signatures.Name+":") {
					must(t, w.redis.HDel(t.Context(), events.DefaultNamespace.Repo(w.repo()), name).Err())
				}
			}
			must(t, w.git.SetHead(modelRepo, "old"))
			w.settle("c")
			for n := range 2 { // also if it is announced again
				if at := w.links(); !strings.HasPrefix(at, "widgets=2") || !slices.Equal(w.refused(), []string{"refs/heads/old"}) {
					t.Errorf("published %s, refused %q", at, w.refused())
				}
				w.mustHandle(fmt.Sprint("d-", n), events.Change{
					Repo: w.repo(), URL: w.git.URL(modelRepo), App: "deploy", Depth: events.DepthFull, Watched: true,
				})
			}
		})
	}
}

// TestNoRewindIsPutBack takes the option away for one push, which rewrites history.
func TestNoRewindIsPutBack(t *testing.T) {
	w, commits := rewound(t, "dev")
	w.watchAs(watch.Watch{App: "deploy", URL: w.git.URL(modelRepo), Depth: events.DepthFull}, "dev")
	w.branch(commits[1], "dev")
	w.mustHandle("b-0", events.Change{
		Repo: w.repo(), URL: w.git.URL(modelRepo), Ref: mustRef("dev"), App: "deploy", Depth: events.DepthFull, Watched: true,
	})
	w.noRewind("deploy", "dev")
	w.looks("c")
	if at := w.links(); !strings.Contains(at, "widgets@dev=1") || len(w.refused()) > 0 {
		t.Errorf("published %s, refused %q", at, w.refused())
	}
}

func selectorOf(text string) watch.Selector {
	s, err := watch.ParseSelector(text)
	if err != nil {
		panic(err)
	}
	return s
}
