package view_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/git/wildmatch"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
)

func TestPathsAreValidated(t *testing.T) {
	for path, want := range map[string]string{
		"docs": "docs", "/docs": "docs", "docs/": "docs/**", "/docs/a b/": "docs/a b/**", "**": "**", "***/x": "**/x", "**/": "*/**", "a/**/": "a/*/**", "//": "", `\!a`: `\!a`,
		`\{a\}`: `\{a\}`, "[ab]/x": "[ab]/x", "größe": "größe", "a\nb": "a\nb", "**/*.go": "**/*.go", "...": "...", " a": " a", "a /b": "a /b", `a\ `: `a\ `, `a\\\ `: `a\\\ `, `a\*`: `a\*`,
		"": "", "/": "", ".": "", "a//b": "", "a/../b": "", "./a": "", "!a": "", "[ab": "", "[a/b]": "", "{a,b}": "", `a\`: "", `a\/b`: "", `a\b`: "", `a\1`: "", "a\x00": "", "a\xff": "", "a**": "", "a\ufffd": "", "a ": "", "a/ ": "", " ": "", "a\r": "", "a\n": "", `a\\ `: "", `a\  `: "", "b/**c/d": "",
		strings.Repeat("a", 1025): "", "[[:nothing:]]": "",
	} {
		set, err := view.New(map[string][]string{"v": {path}})
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is accepted", path)
		case want != "" && err != nil:
			t.Errorf("%q: %v", path, err)
		case want != "" && set.Map()["v"][0] != want:
			t.Errorf("%q became %q, want %q", path, set.Map()["v"][0], want)
		}
	}
	for _, name := range []string{"", "a/b", "~", "..", "-a", "a b", "größe", strings.Repeat("a", 101)} {
		if _, err := view.New(map[string][]string{name: {"a"}}); err == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
	many := map[string][]string{}
	for i := range view.MaxViews + 1 {
		many[fmt.Sprint("v", i)] = []string{"a"}
	}
	for name, views := range map[string]map[string][]string{
		"no path": {"v": nil}, "101 paths": {"v": slices.Repeat([]string{"a"}, 101)}, "10,001 views": many,
	} {
		if _, err := view.New(views); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSetsAreComparedByDigest(t *testing.T) {
	digest := func(views map[string][]string) string { return testenv.Must(view.New(views))(t).Digest() }
	a := digest(map[string][]string{"a": {"x", "y"}, "b": {"z"}})
	if a != digest(map[string][]string{"b": {"/z"}, "a": {"y", "x", "x"}}) {
		t.Error("the same views have another digest")
	}
	for _, other := range []map[string][]string{{"a": {"x"}, "b": {"y", "z"}}, {"a": {"x", "y", "z"}}, {"a": {"x", "y"}, "c": {"z"}}} {
		if a == digest(other) {
			t.Errorf("%v has the same digest", other)
		}
	}
	if set := testenv.Must(view.New(nil))(t); set != nil || set.Len() != 0 || set.Has("a") || set.Map() != nil {
		t.Errorf("no views are %v", set)
	}
	set := testenv.Must(view.New(map[string][]string{"a": {"x/", "y"}}))(t)
	text := testenv.Must(json.Marshal(set))(t)
	var read view.Set
	if err := json.Unmarshal(text, &read); err != nil || read.Digest() != set.Digest() || string(text) != `{"a":["x/**","y"]}` {
		t.Errorf("%s was read as %v, %v", text, read.Map(), err)
	}
	if err := json.Unmarshal([]byte(`{"a":["../x"]}`), &read); err == nil || !strings.HasPrefix(err.Error(), "views: view a: path") {
		t.Errorf("a bad path: %v", err)
	}
}

// files have names that patterns may get wrong.
var files = []string{
	"a", "b/a", "b/c/a", "b/c/d.go", "lib/x.go", "lib/y.md", "lib/sub/x.go", "lib2/x.go", "LIB/x.go", "weird [x]/f", "st*r/f", "star/f",
	`ba\ck/f`, "größe/ü", "\xff\xfe/raw", "!bang/f", "#hash", "sp ace/f", "deep/1/2/3/4/f", ".hidden/f", "{a,b}/f", "docs/guide/start.md",
	"docs/guide.md", "docs/guided/x", "a-b/x", "a.b/x", "ab/a/b/a/b", "new\nline/f",
}

var segments = []string{
	"a", "b", "c", "lib", "docs", "deep", "*", "**", "**", "*.go", "?", "l*", "[ab]", "lib?", "[!a]*", `\!bang`, `st\*r`, "st*r", `weird \[x\]`, ".h*",
	"[[:alpha:]]*", "a**", "**b", "x.go", "1", "größe", "gr*e", "???", `\{a,b\}`, "#hash", "sp ace", "guide", "guide*", "[a-c]b", "new*", `ba\\ck`, "*/f",
}

func randomPath(random *rand.Rand) string {
	var path []string
	for range 1 + random.IntN(4) {
		path = append(path, segments[random.IntN(len(segments))])
	}
	return strings.Join(path, "/") + []string{"", "", "", "/", "/**"}[random.IntN(5)]
}

// selected returns the files of a view.
func selected(t *testing.T, set *view.Set, name string, files []string) (has []string) {
	t.Helper()
	indexes, _ := testenv.Must(set.Match(files))(t).Paths(name, len(files))
	for _, i := range indexes {
		has = append(has, files[i])
	}
	slices.Sort(has)
	return has
}

func TestViewsHaveTheFilesOfGitSparseCheckout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(stdin string, args ...string) string {
		t.Helper()
		return testenv.Must(gitserver.Git(t.Context(), dir, stdin, args...))(t)
	}
	git("", "init", "-q", ".")
	for _, file := range files {
		testenv.Must(0, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))(t)
		testenv.Must(0, os.WriteFile(filepath.Join(dir, file), []byte(file), 0o644))(t)
	}
	git("", "add", "-A")
	git("", "commit", "-q", "-m", "x")
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for range testenv.Form(60, 1000) {
		paths := []string{randomPath(random)}
		if random.IntN(3) == 0 {
			paths = append(paths, randomPath(random))
		}
		set, err := view.New(map[string][]string{"v": paths})
		if err != nil {
			continue
		}
		git("/"+strings.Join(paths, "\n/")+"\n", "sparse-checkout", "set", "--no-cone", "--stdin")
		var want []string
		for line := range strings.SplitSeq(git("", "ls-files", "-t", "-z"), "\x00") {
			if file, ok := strings.CutPrefix(line, "H "); ok {
				want = append(want, file)
			}
		}
		slices.Sort(want)
		if got := selected(t, set, "v", files); !slices.Equal(got, want) {
			t.Errorf("seed %d: %q has %q, git sparse-checkout %q", seed, paths, got, want)
		}
	}
}

// brute reports whether a view with these paths has a file.
func brute(paths []string, file string) bool {
	var m wildmatch.Matcher
	for at := file; ; at = at[:strings.LastIndexByte(at, '/')] {
		if slices.ContainsFunc(paths, func(path string) bool { return m.Match(path, at) }) {
			return true
		}
		if !strings.Contains(at, "/") {
			return false
		}
	}
}

func TestManyViewsMatchAsEachAlone(t *testing.T) {
	t.Parallel()
	for seed := range testenv.Form[uint64](20, 500) {
		random := rand.New(rand.NewPCG(seed, 2))
		views := map[string][]string{}
		for i := range 200 {
			name, paths := fmt.Sprint("v", i), []string{randomPath(random), randomPath(random)}
			if _, err := view.New(map[string][]string{name: paths}); err == nil {
				views[name] = paths
			}
		}
		set := testenv.Must(view.New(views))(t)
		changed := slices.Clone(files)
		random.Shuffle(len(changed), func(i, j int) { changed[i], changed[j] = changed[j], changed[i] })
		changed = changed[:random.IntN(len(changed))]
		matches := testenv.Must(set.Match(changed))(t)
		woken := matches.Views()
		for name, paths := range set.All() {
			var want []int32
			for i, file := range changed {
				if brute(paths, file) {
					want = append(want, int32(i))
				}
			}
			got, more := matches.Paths(name, len(changed))
			if !slices.Equal(got, want) || more || slices.Contains(woken, name) != (len(want) > 0) {
				t.Fatalf("seed %d: %q has %v of %q, want %v", seed, paths, got, changed, want)
			}
			if len(want) > 1 {
				if got, more = matches.Paths(name, 1); !slices.Equal(got, want[:1]) || !more {
					t.Fatalf("seed %d: the first of %v is %v, more %v", seed, want, got, more)
				}
			}
		}
	}
}

func TestHostilePatternsEnd(t *testing.T) {
	t.Parallel()
	views := map[string][]string{}
	for i := range 1000 {
		views[fmt.Sprint("v", i)] = []string{strings.Repeat("*a", 100) + fmt.Sprint(i)}
	}
	set := testenv.Must(view.New(views))(t)
	if _, err := set.Match([]string{strings.Repeat("a", 200), "b"}); err != nil && err != view.ErrTooComplex {
		t.Error(err)
	}
}

// The cost of all paths together is bounded, not that of each.
func TestManyPatternsOnManyPathsEnd(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	views, paths := map[string][]string{}, make([]string, 30_000)
	for i := range view.MaxViews {
		views[fmt.Sprint("v", i)] = []string{fmt.Sprintf("**/x*%d", i)}
	}
	for i := range paths {
		paths[i] = fmt.Sprint("x", i)
	}
	if _, err := testenv.Must(view.New(views))(t).Match(paths); err != view.ErrTooComplex {
		t.Errorf("%v, want %v", err, view.ErrTooComplex)
	}
}

// subscriptions returns n views as of the services of a monorepo: a folder each, shared libraries, and patterns.
func subscriptions(n int) map[string][]string {
	views := map[string][]string{}
	for i := range n {
		paths := []string{fmt.Sprintf("services/team%d/svc%d", i%100, i), fmt.Sprintf("lib/lib%d", i%500)}
		if i%10 == 0 {
			paths = append(paths, fmt.Sprintf("deploy/**/svc%d.yaml", i))
		}
		if i%100 == 0 {
			paths = append(paths, fmt.Sprintf("config/*-%d.json", i))
		}
		views[fmt.Sprint("svc", i)] = paths
	}
	return views
}

// BenchmarkMatchViews matches a push of 50 files with 10,000 views.
func BenchmarkMatchViews(b *testing.B) {
	set := testenv.Must(view.New(subscriptions(view.MaxViews)))(b)
	var changed []string
	for i := range 20 {
		changed = append(changed, fmt.Sprintf("services/team%d/svc%d/src/main%d.go", i%100, i, i), fmt.Sprintf("deploy/prod/eu/svc%d.yaml", i*10))
	}
	for i := range 10 {
		changed = append(changed, fmt.Sprintf("config/x-%d.json", i*100))
	}
	slices.Sort(changed)
	set.Digest() // compiles
	b.ResetTimer()
	for b.Loop() {
		if n := len(testenv.Must(set.Match(changed))(b).Views()); n != 46 {
			b.Fatalf("%d views", n)
		}
	}
}

// BenchmarkCompileViews decodes and compiles 10,000 views, as a process does once after their watch has changed.
func BenchmarkCompileViews(b *testing.B) {
	document := testenv.Must(json.Marshal(subscriptions(view.MaxViews)))(b)
	b.SetBytes(int64(len(document)))
	for b.Loop() {
		var set view.Set
		testenv.Must(0, json.Unmarshal(document, &set))(b)
		set.Digest()
	}
}
