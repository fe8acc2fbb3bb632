package serve

import (
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

// TestRandomHistories compares clones that fetch from the handler with clones that fetch from git http-backend.
func TestRandomHistories(t *testing.T) {
	testenv.SkipUnderRace(t) // it compares what Git clients get
	for _, format := range []string{"sha1", "sha256"} {
		for protocol, option := range protocols {
			t.Run(format+" "+protocol, func(t *testing.T) {
				if protocol == "v2" == (format == "sha256") {
					testenv.Long(t)
				}
				t.Parallel()
				w := newWorld(t, nil)
				a := newAuthor(w, widgets, format, seedOf(t))
				a.commits(8)
				clients := map[string][]string{
					"mirror":        {"--mirror"},
					"one branch":    {"--single-branch", "--branch=main", "--bare"},
					"shallow":       {"--depth=2", "--no-single-branch", "--bare"},
					"shallow later": {"--depth=1", "--bare"},
				}
				for name, args := range clients {
					for of, url := range w.twins() {
						w.git(t.TempDir(), slices.Concat(option, []string{"clone", "-q"}, args, []string{url, w.clone(name, of)})...)
					}
					w.compare(name)
				}
				fetches := [][]string{
					{"fetch", "-q", "--prune", "origin", "+refs/*:refs/*"},
					{"fetch", "-q", "origin", "+refs/heads/main:refs/heads/main"},
					{"fetch", "-q", "--no-tags", "origin", "+refs/heads/side-*:refs/heads/side-*"},
					{"fetch", "-q", "--depth=3", "origin", "+refs/heads/*:refs/heads/*"},
					{"fetch", "-q", "--deepen=2", "origin", "+refs/heads/main:refs/heads/main"},
					{"fetch", "-q", "--shallow-since=1700000004", "origin", "+refs/heads/main:refs/heads/main"},
					{"fetch", "-q", "--unshallow", "origin", "+refs/*:refs/*"},
				}
				for range testenv.Soak(testenv.Form(1, 3), 40) {
					a.commits(1 + a.random.IntN(6))
					a.pack()
					for _, name := range slices.Sorted(maps.Keys(clients)) {
						fetch := fetches[a.random.IntN(len(fetches))]
						for of := range w.twins() {
							dir := w.clone(name, of)
							args := fetch
							if shallow, _ := os.Stat(filepath.Join(dir, "shallow")); shallow == nil && slices.Contains(args, "--unshallow") {
								args = fetches[0]
							}
							w.git(dir, slices.Concat(option, args)...)
						}
						t.Log(name, fetch)
						w.compare(name)
					}
				}
			})
		}
	}
}

// seedOf is a seed for the random choices of a test: the same for each run, unless SEED is set.
func seedOf(t *testing.T) uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		return seed
	}
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	return h.Sum64()
}

// twins are the URLs of the same repository on two servers.
func (w *world) twins() map[string]string {
	return map[string]string{"lockstep": w.url(widgets), "git": w.forge.URL(widgets)}
}

func (w *world) clone(name, of string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(w.forge.Dir(widgets))), "clones", of, strings.ReplaceAll(name, " ", "-"))
}

// compare compares the twin clones of a name.
func (w *world) compare(name string) {
	w.Helper()
	ours, theirs := w.clone(name, "lockstep"), w.clone(name, "git")
	if got, want := w.contents(ours), w.contents(theirs); got != want {
		w.Fatalf("%s: the clone differs:\n%s\nwant\n%s", name, got, want)
	}
	if got, want := w.shallowOf(ours), w.shallowOf(theirs); !slices.Equal(got, want) {
		w.Fatalf("%s: shallow %v, want %v", name, got, want)
	}
}

// shallowOf returns the shallow commits of a clone's refs, except first commits, which Git lists too.
func (w *world) shallowOf(dir string) (shallow []string) {
	content, _ := os.ReadFile(filepath.Join(dir, "shallow"))
	reachable := w.git(dir, "rev-list", "--all")
	for id := range strings.FieldsSeq(string(content)) {
		if strings.Contains(reachable, id) && strings.Contains(w.git(dir, "cat-file", "commit", id), "\nparent ") {
			shallow = append(shallow, id)
		}
	}
	slices.Sort(shallow)
	return shallow
}
